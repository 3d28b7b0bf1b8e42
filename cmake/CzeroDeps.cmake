# An option of three values, AUTO by default.
function(cz_choice name help)
  set(${name} AUTO CACHE STRING "${help}")
  set_property(CACHE ${name} PROPERTY STRINGS AUTO ON OFF)
  if(NOT ${name} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "${name}=${${name}}: ON, OFF or AUTO is needed")
  endif()
endfunction()

# Foreign libraries, each behind one interface target.
find_package(PkgConfig REQUIRED)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(DEFLATE REQUIRED IMPORTED_TARGET libdeflate)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
find_library(DNNL_LIBRARY dnnl REQUIRED)
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.h REQUIRED)
find_package(Threads REQUIRED)
# libgomp is not instrumented: ThreadSanitizer would report its barriers as races. Nor is it clang's.
if(NOT CZ_TSAN AND NOT CZ_FUZZ)
  find_package(OpenMP REQUIRED COMPONENTS C)
endif()

add_library(cz_deps INTERFACE)
target_include_directories(cz_deps SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
target_link_libraries(cz_deps INTERFACE PkgConfig::HWLOC PkgConfig::URING
  PkgConfig::UTF8PROC PkgConfig::DEFLATE PkgConfig::ZLIB PkgConfig::ZSTD ${DNNL_LIBRARY} Threads::Threads m dl)
if(OpenMP_C_FOUND)
  target_link_libraries(cz_deps INTERFACE OpenMP::OpenMP_C)
else()
  target_link_libraries(cz_deps INTERFACE gomp) # oneDNN brings it: the calls about threads exist
endif()

# MPI is a plug-in (comm/mpi); without it ranks communicate over shared memory on one host.
cz_choice(CZ_MPI "Build the MPI plug-in: ON, OFF, or AUTO where mpicc is found")
if(CZ_MPI STREQUAL "OFF")
  message(STATUS "MPI: left out (CZ_MPI=OFF)")
else()
  find_package(MPI COMPONENTS C)
  if(NOT MPI_C_FOUND AND CZ_MPI STREQUAL "ON")
    message(FATAL_ERROR "CZ_MPI=ON, but mpicc was not found: install libopenmpi-dev, or use CZ_MPI=OFF")
  elseif(NOT MPI_C_FOUND)
    message(STATUS "MPI: left out (no mpicc found: several hosts, mpirun and srun will not work)")
  endif()
endif()
