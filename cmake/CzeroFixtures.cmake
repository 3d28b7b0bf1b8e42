# What tests read (tests/fixtures/README.md) in one folder of the build: unpacked, or linked.
set(CZ_FIXTURES ${CMAKE_BINARY_DIR}/fixtures)

function(cz_fixtures)
  set(from ${CMAKE_SOURCE_DIR}/tests/fixtures)
  file(GLOB archives CONFIGURE_DEPENDS ${from}/*.tar.xz)
  file(GLOB names CONFIGURE_DEPENDS LIST_DIRECTORIES true RELATIVE ${from} ${from}/*)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/fixtures.txt CONTENT "${names}\n" @ONLY) # a new one needs a link
  add_custom_command(OUTPUT ${CZ_FIXTURES}/.unpacked
    COMMAND ${CMAKE_COMMAND} -DTO=${CZ_FIXTURES} -P ${from}/unpack.cmake
    DEPENDS ${archives} ${from}/unpack.cmake ${CMAKE_BINARY_DIR}/fixtures.txt
    COMMENT "Unpacking the fixtures" VERBATIM)
  add_custom_target(unpack_fixtures ALL DEPENDS ${CZ_FIXTURES}/.unpacked)
endfunction()
