# One object library per module (a top-level folder); sources are found, not listed, so that adding a file is enough.
set(CZ_OBJECTS "" CACHE INTERNAL "")

function(cz_module name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${name}/*.c)
  list(FILTER sources EXCLUDE REGEX "/lab/|/comm/mpi/|/cuda/|/comm/nccl/")
  if(NOT sources)
    return()
  endif()
  cz_isa_flags(${sources})
  add_library(cz_${name} OBJECT ${sources})
  set_source_files_properties(${sources} PROPERTIES LANGUAGE C)
  target_link_libraries(cz_${name} PRIVATE cz_flags cz_deps)
  list(APPEND CZ_OBJECTS $<TARGET_OBJECTS:cz_${name}>)
  set(CZ_OBJECTS ${CZ_OBJECTS} CACHE INTERNAL "")
endfunction()

# The public names, one a line: what libczero.so exports, and the installed libczero.a keeps global.
set(CZ_EXPORTS ${CMAKE_SOURCE_DIR}/api/exports.txt)

# The version script that exports them and nothing else.
function(cz_version_script out)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CZ_EXPORTS})
  file(STRINGS ${CZ_EXPORTS} names)
  list(JOIN names "; " names)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/czero.map
    CONTENT "CZERO_${PROJECT_VERSION_MAJOR} { global: ${names}; local: *; };\n")
  set(${out} ${CMAKE_BINARY_DIR}/czero.map PARENT_SCOPE)
endfunction()

# czero_static is for the project's own programs, which use internal names. Programs of users get
# libczero.so, or install/libczero.a: the same objects as one, with internal names made local, so
# that neither meets theirs.
function(cz_library)
  add_library(czero_static STATIC ${CZ_OBJECTS})
  target_link_libraries(czero_static PUBLIC cz_deps)
  add_library(czero_shared SHARED ${CZ_OBJECTS})
  target_link_libraries(czero_shared PRIVATE cz_deps)
  set_target_properties(czero_static czero_shared PROPERTIES OUTPUT_NAME czero LINKER_LANGUAGE C)
  cz_version_script(map)
  target_link_options(czero_shared PRIVATE -Wl,--version-script=${map})
  set_target_properties(czero_shared PROPERTIES VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${map} INSTALL_RPATH "$ORIGIN")
  if(CZ_SANITIZE)
    target_link_options(czero_shared PRIVATE -fsanitize=address,undefined)
  elseif(CZ_TSAN)
    target_link_options(czero_shared PRIVATE -fsanitize=thread)
  endif()

  set(archive ${CMAKE_BINARY_DIR}/install/libczero.a)
  add_custom_command(OUTPUT ${archive}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/install
    COMMAND ${CMAKE_COMMAND} -E rm -f ${archive}
    COMMAND ${CMAKE_LINKER} -r --whole-archive $<TARGET_FILE:czero_static> -o install/czero.o
    COMMAND ${CMAKE_OBJCOPY} --keep-global-symbols=${CZ_EXPORTS} install/czero.o
    COMMAND ${CMAKE_AR} qc ${archive} install/czero.o
    COMMAND ${CMAKE_RANLIB} ${archive}
    COMMAND ${CMAKE_COMMAND} -E rm -f install/czero.o
    DEPENDS czero_static ${CZ_EXPORTS} WORKING_DIRECTORY ${CMAKE_BINARY_DIR} VERBATIM)
  add_custom_target(czero_archive ALL DEPENDS ${archive})
endfunction()

# libczero_mpi.so, opened at run time for several ranks: the only thing that is linked against MPI.
function(cz_mpi_plugin)
  if(NOT MPI_C_FOUND)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/comm/mpi/*.c)
  set(map ${CMAKE_SOURCE_DIR}/comm/mpi/plugin.map)
  add_library(czero_mpi MODULE ${sources} ${CMAKE_SOURCE_DIR}/comm/peer_watch.c)
  target_include_directories(czero_mpi SYSTEM PRIVATE ${MPI_C_INCLUDE_DIRS})
  target_link_libraries(czero_mpi PRIVATE cz_flags MPI::MPI_C)
  target_link_options(czero_mpi PRIVATE -Wl,--version-script=${map})
  # where MPI's own compiler looks for it
  set_target_properties(czero_mpi PROPERTIES LINK_DEPENDS ${map} INSTALL_RPATH_USE_LINK_PATH ON)
endfunction()

# libczero_parquet.so, opened at the first Parquet file: the only thing that is linked against Arrow's C++ libraries.
function(cz_parquet_plugin)
  if(NOT TARGET cz_arrow)
    return()
  endif()
  set(map ${CMAKE_SOURCE_DIR}/data/source/parquet/plugin.map)
  add_library(czero_parquet MODULE ${CMAKE_SOURCE_DIR}/data/source/parquet/parquet_arrow.cc)
  target_include_directories(czero_parquet PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(czero_parquet PRIVATE cz_arrow)
  target_link_options(czero_parquet PRIVATE -Wl,--version-script=${map})
  set_target_properties(czero_parquet PROPERTIES LINK_DEPENDS ${map} INSTALL_RPATH_USE_LINK_PATH ON
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
endfunction()

# libczero_internal.so: every function exported, for the checks in tests/interop that call internal ones
# from Python. Built on request: cmake --build build --target czero_internal
function(cz_internal_library)
  foreach(object ${CZ_OBJECTS})
    string(REGEX REPLACE ".*:(cz_[a-z]+)>" "\\1" module ${object})
    get_target_property(sources_of ${module} SOURCES)
    list(APPEND sources ${sources_of})
  endforeach()
  add_library(czero_internal SHARED EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(czero_internal PRIVATE cz_flags cz_deps)
  set_target_properties(czero_internal PROPERTIES C_VISIBILITY_PRESET default LINKER_LANGUAGE C)
  # what other objects may replace is inlined nowhere, and gcc's analysis sees less
  target_compile_options(czero_internal PRIVATE -Wno-error)
endfunction()

# A program in a folder of the build folder, where the plug-ins are.
function(cz_program target output folder)
  add_executable(${target} ${ARGN})
  target_link_libraries(${target} PRIVATE cz_flags czero_static)
  file(RELATIVE_PATH up /${folder} /)
  string(REGEX REPLACE "/$" "" up "/${up}")
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${output} INSTALL_RPATH "$ORIGIN${up}"
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/${folder})
endfunction()

function(cz_tools)
  cz_release_date()
  file(RELATIVE_PATH libdir /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/czero/*.c)
  cz_program(tool_czero czero . ${sources} ${CMAKE_SOURCE_DIR}/tools/zero_to_fp32/command.c)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/zero_to_fp32/*.c)
  cz_file_tool(tool_zero_to_fp32 zero_to_fp32 ${sources})
  foreach(tool tool_czero tool_zero_to_fp32)
    target_compile_definitions(${tool} PRIVATE CZERO_VERSION="${PROJECT_VERSION}"
      CZERO_DATE="${CZ_RELEASE_DATE}")
    # Plug-ins are beside the program in the build folder and, installed, in the library folder beside
    # bin; there a tarball has all other libraries, too.
    set_target_properties(${tool} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
      INSTALL_RPATH "$ORIGIN;$ORIGIN/${libdir}")
  endforeach()
endfunction()

# The date of this version in the changelog, which manual pages show; "" before the release.
function(cz_release_date)
  file(STRINGS ${CMAKE_SOURCE_DIR}/CHANGELOG.md lines REGEX "^## \\[${PROJECT_VERSION}\\] - ")
  string(REGEX REPLACE ".* - " "" date "${lines}")
  set(CZ_RELEASE_DATE "${date}" PARENT_SCOPE)
endfunction()

# Manual pages and completions: printed by the program that was built, into share/ of the build folder.
function(cz_pages)
  if(CMAKE_CROSSCOMPILING)
    message(STATUS "manual pages and completions: left out (this build cannot run what it makes)")
    return()
  endif()
  set(share ${CMAKE_BINARY_DIR}/share)
  set(made ${share}/czero.bash ${share}/_czero ${share}/czero.fish)
  add_custom_command(OUTPUT ${made} ${share}/man1/czero.1
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${share}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${share}/man1
    COMMAND tool_czero man --output ${share}/man1
    COMMAND tool_czero completion bash > ${share}/czero.bash
    COMMAND tool_czero completion zsh > ${share}/_czero
    COMMAND tool_czero completion fish > ${share}/czero.fish
    DEPENDS tool_czero VERBATIM)
  add_custom_target(pages ALL DEPENDS ${made})
  install(DIRECTORY ${share}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
  install(FILES ${share}/_czero DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  foreach(program czero zero_to_fp32) # shells look for a file of the program's name
    install(FILES ${share}/czero.bash RENAME ${program}
      DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    install(FILES ${share}/czero.fish RENAME ${program}.fish
      DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
  endforeach()
endfunction()

# A program over files alone: no ranks, no kernels, no NUMA, so that it starts and stays small.
# --as-needed: modules name libraries that only other modules use.
function(cz_file_tool target output)
  add_executable(${target} ${ARGN})
  foreach(source args args_foreign bar consolidated output terminal tool)
    target_sources(${target} PRIVATE ${CMAKE_SOURCE_DIR}/tools/czero/${source}.c)
  endforeach()
  foreach(module base layout formats checkpoint)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:cz_${module}>)
  endforeach()
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${output})
  target_link_libraries(${target} PRIVATE cz_flags)
  target_link_options(${target} PRIVATE -Wl,--as-needed)
  target_link_libraries(${target} PRIVATE cz_deps)
endfunction()

function(cz_examples)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/examples/*.c
    ${CMAKE_SOURCE_DIR}/examples/*.cpp)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    if(name MATCHES "_cjson$" AND NOT TARGET PkgConfig::CJSON)
      continue()
    endif()
    cz_program(example_${name} ${name} examples ${source})
    if(name MATCHES "_cjson$")
      target_link_libraries(example_${name} PRIVATE PkgConfig::CJSON)
    endif()
    target_compile_options(example_${name} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wshadow $<$<BOOL:${CZ_WERROR}>:-Werror>>)
  endforeach()
endfunction()

function(cz_benches)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/*.c ${CMAKE_SOURCE_DIR}/bench/gpu/*.c)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    cz_program(bench_${name} ${name} bench ${source})
  endforeach()
endfunction()

# The module that a test belongs to: tests/unit/<module>/…, or the first folder below tests/.
function(cz_test_module out source)
  file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR}/tests ${source})
  string(REGEX REPLACE "^unit/" "" path ${path})
  string(REGEX REPLACE "/.*" "" module ${path})
  set(${out} ${module} PARENT_SCOPE)
endfunction()

# tests/…/test_<thing>.c is a Check program called <module>.test_<thing>; test_*_slow.c gets the label
# "slow", which the default run leaves out. tests/…/test_<thing>.sh runs with the build folder as its
# argument, as <module>.test_<thing>_sh. tests/…/<thing>_rank.c are programs that scripts start,
# several at a time.
function(cz_tests)
  pkg_check_modules(CHECK REQUIRED IMPORTED_TARGET check)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/test_*.c)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    cz_test_module(module ${source})
    if(module MATCHES "^gpu(_sim)?$" AND NOT TARGET czero_cuda_sim)
      continue()
    endif()
    if(name MATCHES "_cjson$" AND NOT TARGET PkgConfig::CJSON)
      add_test(NAME ${module}.${name} COMMAND sh -c "echo 'skipped: cJSON is not here: install libcjson-dev'; exit 77")
      cz_test_properties(${module}.${name} ${name})
      continue()
    endif()
    cz_isa_flags(${source})
    cz_program(${module}.${name} ${name} tests/${module} ${source})
    target_link_libraries(${module}.${name} PRIVATE PkgConfig::CHECK)
    if(name MATCHES "_cjson$")
      target_link_libraries(${module}.${name} PRIVATE PkgConfig::CJSON)
    endif()
    if(name STREQUAL test_nulls) # looks up every public name
      target_link_options(${module}.${name} PRIVATE -rdynamic
        LINKER:--whole-archive $<TARGET_FILE:czero_static> LINKER:--no-whole-archive)
    endif()
    add_dependencies(${module}.${name} unpack_fixtures)
    target_compile_definitions(${module}.${name} PRIVATE
      CZ_SOURCE_DIR="${CMAKE_SOURCE_DIR}" CZ_BINARY_DIR="${CMAKE_BINARY_DIR}")
    add_test(NAME ${module}.${name} COMMAND ${module}.${name})
    cz_test_properties(${module}.${name} ${name})
    if(module STREQUAL gpu)
      cz_on_simulated_device(${module}.${name})
      cz_in_other_orders(${module}.${name} ${name})
      cz_with_all(${module}.${name} ${name} ${source})
      if(NOT CZ_GPU_TESTS)
        cz_as_ptx(${module}.${name} ${name})
        add_dependencies(${module}.${name} czero_cuda_sim)
      endif()
    elseif(module STREQUAL gpu_sim)
      cz_cuda_sim_test(${module}.${name})
    endif()
  endforeach()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/unit/*_rank.c)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    cz_test_module(module ${source})
    cz_program(${module}.${name} ${name} tests/${module} ${source})
  endforeach()
  file(GLOB_RECURSE scripts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/test_*.sh)
  foreach(script ${scripts})
    get_filename_component(name ${script} NAME_WE)
    cz_test_module(module ${script})
    if(module MATCHES "^gpu(_sim)?$" AND NOT TARGET czero_cuda_sim)
      continue()
    endif()
    add_test(NAME ${module}.${name}_sh COMMAND bash ${script} ${CMAKE_BINARY_DIR})
    cz_test_properties(${module}.${name}_sh ${name})
    if(module STREQUAL gpu)
      cz_on_simulated_device(${module}.${name}_sh)
    endif()
  endforeach()
endfunction()

# The same tests with threads and blocks, and streams, in other orders that CUDA allows: results must
# not change. Not in the default run.
function(cz_in_other_orders target name)
  foreach(order reverse random:1)
    string(REPLACE ":" "" suffix ${order})
    set(test ${target}.${suffix})
    add_test(NAME ${test} COMMAND ${target})
    cz_test_properties(${test} ${name} 20)
    cz_on_simulated_device(${test})
    set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT
      "CZERO_CUDA_SIM_ORDER=${order};CZERO_CUDA_SIM_STREAMS=random:1")
    set_tests_properties(${test} PROPERTIES LABELS "slow;cuda;order")
  endforeach()
endfunction()

# Programs that try more where CZ_CUDA_ALL is set, with all of it. Not in the default run.
function(cz_with_all target name source)
  file(STRINGS ${source} tries_more REGEX CZ_CUDA_ALL LIMIT_COUNT 1)
  if(tries_more)
    add_test(NAME ${target}.all COMMAND ${target})
    cz_test_properties(${target}.all ${name} 20)
    cz_on_simulated_device(${target}.all)
    set_property(TEST ${target}.all APPEND PROPERTY ENVIRONMENT CZ_CUDA_ALL=1)
    set_tests_properties(${target}.all PROPERTIES LABELS "slow;cuda")
  endif()
endfunction()

# The same tests with the code that nvcc makes of the kernels, watched (tests/support/cuda_sim): each
# op's in the default run, whole models and runs not.
function(cz_as_ptx target name)
  set(test ${target}.ptx)
  if(TARGET cuda_ptx)
    add_test(NAME ${test} COMMAND ${target})
    add_dependencies(${target} cuda_ptx)
  else()
    add_test(NAME ${test} COMMAND sh -c "echo 'skipped: PTX is made by a build with nvcc'; exit 77")
  endif()
  set(label slow)
  set(patience 20)
  if(name MATCHES "^test_(${CZ_PTX_DEFAULT})_cuda$")
    set(label unit)
    set(patience 4) # emulated instruction by instruction
  endif()
  cz_test_properties(${test} ${name} ${patience})
  cz_on_simulated_device(${test})
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT "CZERO_CUDA_SIM_CODE=ptx")
  set_tests_properties(${test} PROPERTIES LABELS "${label};cuda;ptx")
endfunction()
string(JOIN "|" CZ_PTX_DEFAULT activation attention ce_head cross_entropy dora dropout elementwise
  embedding lamb matmul norm onebit reduce rope router step)

# tests/gpu runs on the plug-in that this names; scripts/gpu_check.sh runs the same on a real GPU.
function(cz_on_simulated_device test)
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT
    "CZERO_CUDA_PLUGIN=${CMAKE_BINARY_DIR}/cuda_sim/libczero_cuda.so")
  set_property(TEST ${test} APPEND PROPERTY LABELS cuda)
endfunction()

# Seconds of two cores, roughly: with several at a time the long ones begin first, so that none is
# left to run alone at the end.
set(CZ_LONG_TESTS
  gpu.test_onebit_runs_cuda=60 cli.test_kill_save_sh=50 gpu.test_cuda_errors_sh=40
  ops.test_forced_isa_sh=35 cli.test_classify_sh=35 gpu.test_offload_cuda=30 gpu.test_late_cuda=60
  engine.test_no_allocation=30 engine.test_offload_memory=30 zero.test_onebit_gpu=30
  engine.test_resume=30 zero.test_zero_gpu=28 gpu.test_attention_cuda.ptx=26 comm.test_mpi_sh=22
  engine.test_resume_fixtures=20 comm.test_two_hosts_sh=20 engine.test_offload_faults=20
  engine.test_offload_resume=19 formats.test_safetensors=19 gpu.test_zero_cuda=18
  gpu.test_bench_cuda_sh=18 engine.test_offload=18 gpu.test_ranks_cuda=17 engine.test_replay=17
  zero.test_zero_swap=17 gpu.test_attention_cuda=16 engine.test_ranks=16
  engine.test_offload_calls=15 engine.test_train_batch=12 engine.test_onebit_reload=15 cli.test_resume_sh=15 cli.test_hostile=28
  zero.test_lamb_ranks=15 gpu.test_model_cuda=14 engine.test_replay_onebit=14
  engine.test_onebit_ranks=12 engine.test_save_faults=12 cli.test_memory_doc_sh=12
  install.test_public_headers_sh=44 engine.test_replay_runs=31 engine.test_tune=30
  lint.test_options_sh=28 cli.test_gpu_check_sh=20 install.test_install_sh=20
  gpu.test_step_cuda.ptx=18 engine.test_replay_ranks_runs=16 gpu.test_engine_cuda=16
  gpu.test_traffic_sh=15 lint.test_fixtures_sh=15 gpu.test_ce_head_cuda.ptx=14
  cli.test_hostile=40 cli.test_hostile_names_sh=24 api.test_no_memory=15 cli.test_offload_sh=13
  checkpoint.test_store_faults=12)

# Hung tests end by these limits: a case of Check after a minute, unless its program allows it more
# (TEST_MAIN_SECONDS), and a whole test after two minutes and ten times what it takes above. That is
# eight times what they take on two cores that do nothing else, for slower machines that run two
# tests at a time. `patience` multiplies both limits: 1, and more for what makes everything slower.
if(CZ_SANITIZE OR CZ_TSAN)
  set(CZ_TEST_PATIENCE 5 CACHE STRING "Multiplies the time limits of all tests")
else()
  set(CZ_TEST_PATIENCE 1 CACHE STRING "Multiplies the time limits of all tests")
endif()

function(cz_test_limits test patience)
  math(EXPR patience "${patience} * ${CZ_TEST_PATIENCE}")
  get_property(cost TEST ${test} PROPERTY COST)
  if(NOT cost)
    set(cost 0)
  endif()
  math(EXPR limit "(120 + 10 * ${cost}) * ${patience}")
  set_tests_properties(${test} PROPERTIES TIMEOUT ${limit})
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT
    "CK_DEFAULT_TIMEOUT=60;CK_TIMEOUT_MULTIPLIER=${patience}")
endfunction()

# `patience` may be given, see above; else it follows from the label.
function(cz_test_properties test name)
  set(label unit)
  set(patience 1)
  if(name MATCHES "_slow$")
    set(label slow)
    set(patience 20)
  elseif(name MATCHES "_agree$")
    set(label "unit;agree")
  elseif(name MATCHES "^test_(mpi|two_hosts)")
    set(label "unit;mpi")
  endif()
  if(ARGC GREATER 2)
    set(patience ${ARGV2})
  endif()
  # Passive waits: tests run side by side, and spinning threads would take the others' cores.
  set_tests_properties(${test} PROPERTIES LABELS "${label}" SKIP_RETURN_CODE 77
    ENVIRONMENT "ASAN_OPTIONS=detect_leaks=1;OMP_WAIT_POLICY=passive"
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  string(REPLACE "." "\\." pattern "${test}")
  if("${CZ_LONG_TESTS}" MATCHES "(^|;)${pattern}=([0-9]+)")
    set_tests_properties(${test} PROPERTIES COST ${CMAKE_MATCH_2})
  endif()
  cz_test_limits(${test} ${patience})
  # OpenMPI's programs share a folder in /tmp, which the last to leave removes.
  if(test MATCHES "^(comm\\.test_mpi_sh|comm\\.test_two_hosts_sh|cli\\.test_ranks_sh)$")
    set_tests_properties(${test} PROPERTIES RESOURCE_LOCK mpirun)
  endif()
endfunction()

# What a program that links libczero.a needs besides: the libraries by the names under which they are
# installed for running programs (-l:libhwloc.so.15), so that no development package is needed.
function(cz_private_libs out)
  set(libs)
  foreach(file ${HWLOC_LINK_LIBRARIES} ${URING_LINK_LIBRARIES}
      ${UTF8PROC_LINK_LIBRARIES} ${DEFLATE_LINK_LIBRARIES} ${ZLIB_LINK_LIBRARIES}
      ${ZSTD_LINK_LIBRARIES} ${DNNL_LIBRARY} ${OpenMP_gomp_LIBRARY})
    if(NOT EXISTS ${file})
      continue()
    endif()
    execute_process(COMMAND ${CMAKE_READELF} -d ${file} OUTPUT_VARIABLE dynamic ERROR_QUIET)
    if(dynamic MATCHES "SONAME[^[]*\\[([^]]*)\\]")
      list(APPEND libs -l:${CMAKE_MATCH_1})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES libs)
  set(${out} ${libs} -lpthread -ldl -lm PARENT_SCOPE)
endfunction()

# Components are the packages (CzeroPackages.cmake): what names none is part of runtime, the programs'.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME runtime)

function(cz_install)
  install(TARGETS czero_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library
    NAMELINK_COMPONENT development)
  install(FILES ${CMAKE_BINARY_DIR}/install/libczero.a DESTINATION ${CMAKE_INSTALL_LIBDIR}
    COMPONENT development)
  foreach(tool tool_czero tool_zero_to_fp32)
    if(TARGET ${tool})
      install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    endif()
  endforeach()
  foreach(plugin mpi cuda parquet)
    if(TARGET czero_${plugin})
      # a folder in which only some targets were built installs those
      install(TARGETS czero_${plugin} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${plugin}
        OPTIONAL)
    endif()
  endforeach()
  install(DIRECTORY include/czero DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
    FILES_MATCHING PATTERN "*.h")
  cz_private_libs(CZ_PRIVATE_LIBS)
  list(JOIN CZ_PRIVATE_LIBS " " CZ_PC_PRIVATE_LIBS)
  # The .pc file derives its prefix from its own path: `cmake --install --prefix` chooses late.
  file(RELATIVE_PATH CZ_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  configure_file(cmake/czero.pc.in czero.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/czero.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
    COMPONENT development)
  include(CMakePackageConfigHelpers)
  configure_package_config_file(cmake/czeroConfig.cmake.in ${CMAKE_BINARY_DIR}/czeroConfig.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/czero
    PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/czeroConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/czeroConfig.cmake ${CMAKE_BINARY_DIR}/czeroConfigVersion.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/czero COMPONENT development)
  install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/czero)
  install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development
    PATTERN data EXCLUDE)
endfunction()
