# One object library per room; sources are found, not listed, so that adding a file is enough.
set(CZ_OBJECTS "" CACHE INTERNAL "")

function(cz_room name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${name}/*.c)
  list(FILTER sources EXCLUDE REGEX "/lab/")
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

function(cz_library)
  add_library(czero_static STATIC ${CZ_OBJECTS})
  target_link_libraries(czero_static PUBLIC cz_deps)
  add_library(czero_shared SHARED ${CZ_OBJECTS})
  target_link_libraries(czero_shared PRIVATE cz_deps)
  set_target_properties(czero_static czero_shared PROPERTIES OUTPUT_NAME czero LINKER_LANGUAGE C)
  set_target_properties(czero_shared PROPERTIES VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR})
  if(CZ_SANITIZE)
    target_link_options(czero_shared PRIVATE -fsanitize=address,undefined)
  elseif(CZ_TSAN)
    target_link_options(czero_shared PRIVATE -fsanitize=thread)
  endif()
  # In-tree programs include <czero/czero.h> as installed ones do.
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include)
  file(CREATE_LINK ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/include/czero SYMBOLIC)
endfunction()

function(cz_program target output)
  add_executable(${target} ${ARGN})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${output})
  target_include_directories(${target} PRIVATE ${CMAKE_BINARY_DIR}/include)
  target_link_libraries(${target} PRIVATE cz_flags czero_static)
endfunction()

function(cz_tools)
  foreach(tool czero zero_to_fp32)
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/${tool}/*.c)
    if(sources)
      cz_program(tool_${tool} ${tool} ${sources})
      target_compile_definitions(tool_${tool} PRIVATE CZERO_VERSION="${PROJECT_VERSION}")
      set_target_properties(tool_${tool} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
    endif()
  endforeach()
endfunction()

function(cz_examples)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/examples/*.c)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    cz_program(example_${name} ${name} ${source})
    set_target_properties(example_${name} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/examples)
  endforeach()
endfunction()

function(cz_benches)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/*.c)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    cz_program(bench_${name} ${name} ${source})
    set_target_properties(bench_${name} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  endforeach()
endfunction()

# tests/<room>/test_<thing>.c is a Check program; test_*_slow.c gets the label "slow", which the
# default run leaves out. tests/<room>/test_<thing>.sh runs with the build folder as its argument.
function(cz_tests)
  pkg_check_modules(CHECK REQUIRED IMPORTED_TARGET check)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/*/test_*.c)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    get_filename_component(dir ${source} DIRECTORY)
    get_filename_component(room ${dir} NAME)
    cz_isa_flags(${source})
    cz_program(${room}.${name} ${name} ${source})
    set_target_properties(${room}.${name} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/${room})
    target_link_libraries(${room}.${name} PRIVATE PkgConfig::CHECK)
    target_compile_definitions(${room}.${name} PRIVATE
      CZ_SOURCE_DIR="${CMAKE_SOURCE_DIR}" CZ_BINARY_DIR="${CMAKE_BINARY_DIR}")
    add_test(NAME ${room}.${name} COMMAND ${room}.${name})
    cz_test_properties(${room}.${name} ${name})
  endforeach()
  file(GLOB scripts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/*/test_*.sh)
  foreach(script ${scripts})
    get_filename_component(name ${script} NAME_WE)
    get_filename_component(dir ${script} DIRECTORY)
    get_filename_component(room ${dir} NAME)
    add_test(NAME ${room}.${name}_sh COMMAND bash ${script} ${CMAKE_BINARY_DIR})
    cz_test_properties(${room}.${name}_sh ${name})
  endforeach()
endfunction()

function(cz_test_properties test name)
  set(label unit)
  if(name MATCHES "_slow$")
    set(label slow)
  elseif(name MATCHES "_agree$")
    set(label "unit;agree")
  endif()
  # Passive waits: tests run side by side, and spinning threads would take the others' cores.
  set_tests_properties(${test} PROPERTIES LABELS "${label}" SKIP_RETURN_CODE 77 TIMEOUT 900
    ENVIRONMENT "CK_DEFAULT_TIMEOUT=600;ASAN_OPTIONS=detect_leaks=1;OMP_WAIT_POLICY=passive"
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
endfunction()

function(cz_install)
  install(TARGETS czero_static czero_shared
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  foreach(tool tool_czero tool_zero_to_fp32)
    if(TARGET ${tool})
      install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    endif()
  endforeach()
  install(FILES czero.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/czero)
  foreach(room base device ops optim model data engine layout)
    install(DIRECTORY ${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/czero FILES_MATCHING
      PATTERN "*.h" PATTERN "*_impl.h" EXCLUDE PATTERN "lab" EXCLUDE)
  endforeach()
  # The .pc file finds its prefix from where it lies: `cmake --install --prefix` chooses late.
  file(RELATIVE_PATH CZ_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  configure_file(cmake/czero.pc.in czero.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/czero.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  include(CMakePackageConfigHelpers)
  configure_package_config_file(cmake/czeroConfig.cmake.in ${CMAKE_BINARY_DIR}/czeroConfig.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/czero
    PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/czeroConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/czeroConfig.cmake ${CMAKE_BINARY_DIR}/czeroConfigVersion.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/czero)
  install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/czero)
endfunction()
