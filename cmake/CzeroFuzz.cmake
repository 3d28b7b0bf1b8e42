# tests/fuzz/fuzz_<reader>.c: one function over bytes each. docs/fuzzing.md says how they are run.

# With clang's libFuzzer (preset "fuzz"), from the readers' sources alone: kernels would take minutes
# to instrument and read nothing.
function(cz_fuzz_targets)
  if(NOT CMAKE_C_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "CZ_FUZZ needs clang: use the preset \"fuzz\"")
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/base/*.c ${CMAKE_SOURCE_DIR}/formats/*.c
    ${CMAKE_SOURCE_DIR}/layout/*.c ${CMAKE_SOURCE_DIR}/checkpoint/*.c ${CMAKE_SOURCE_DIR}/optim/*.c
    ${CMAKE_SOURCE_DIR}/data/corpus/documents.c ${CMAKE_SOURCE_DIR}/data/corpus/megatron.c
    ${CMAKE_SOURCE_DIR}/data/corpus/store*.c ${CMAKE_SOURCE_DIR}/data/source/*.c
    ${CMAKE_SOURCE_DIR}/model/*.c ${CMAKE_SOURCE_DIR}/api/model.c ${CMAKE_SOURCE_DIR}/ops/activation/activation.c
    ${CMAKE_SOURCE_DIR}/data/labelled/texts*.c ${CMAKE_SOURCE_DIR}/data/jinja/*.c ${CMAKE_SOURCE_DIR}/data/chat/*.c
    ${CMAKE_SOURCE_DIR}/data/tokenizer/*.c
    ${CMAKE_SOURCE_DIR}/engine/config/*.c ${CMAKE_SOURCE_DIR}/engine/state/run_state*.c
    ${CMAKE_SOURCE_DIR}/engine/machine/machine_json.c ${CMAKE_SOURCE_DIR}/base/text/text_width.c)
  list(FILTER sources EXCLUDE REGEX "/vocab[^/]*\\.c$")
  list(FILTER sources EXCLUDE REGEX "/base/threads\\.c$") # wants gcc's omp.h
  list(APPEND sources ${CMAKE_SOURCE_DIR}/tests/support/one_thread.c)
  add_library(cz_readers STATIC ${sources})
  target_link_libraries(cz_readers PRIVATE cz_flags cz_deps)
  # The fast form counts branches but does not watch comparisons, which would take half of its time.
  set(coverage -fsanitize=fuzzer-no-link)
  if(CZ_FUZZ STREQUAL "FAST")
    list(APPEND coverage -fno-sanitize-coverage=trace-cmp)
  endif()
  target_compile_options(cz_readers PRIVATE ${coverage})
  file(GLOB targets CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
  foreach(source ${targets})
    get_filename_component(name ${source} NAME_WE)
    string(REPLACE fuzz_ "" reader ${name})
    file(GLOB mutator CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/mutators/${reader}_mutator.c)
    if(reader STREQUAL onebit) # its input is a pickle, too
      set(mutator ${CMAKE_SOURCE_DIR}/tests/fuzz/mutators/pickle_mutator.c)
    endif()
    if(reader STREQUAL chat) # a third of its inputs begin with a template
      set(mutator ${CMAKE_SOURCE_DIR}/tests/fuzz/mutators/jinja_mutator.c)
    endif()
    add_executable(${name} ${source} ${mutator})
    target_link_libraries(${name} PRIVATE cz_flags cz_readers cz_deps)
    target_compile_options(${name} PRIVATE ${coverage})
    # Tables of optimizers name kernels that no reader calls: they may be missing.
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer -no-pie
      -Wl,--unresolved-symbols=ignore-all)
  endforeach()
endfunction()

# In every other build: each target over its corpus, as a normal test.
function(cz_fuzz_corpora)
  file(GLOB targets CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
  foreach(source ${targets})
    get_filename_component(name ${source} NAME_WE)
    string(REPLACE fuzz_ "" reader ${name})
    cz_program(fuzz.${reader} ${name} tests/fuzz ${source} ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus_main.c)
    add_test(NAME fuzz.${reader}
      COMMAND fuzz.${reader} ${CZ_FIXTURES}/fuzz/${reader})
    cz_test_properties(fuzz.${reader} ${name})
    add_dependencies(fuzz.${reader} unpack_fixtures)
  endforeach()
endfunction()
