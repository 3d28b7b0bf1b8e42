# Debian packages by CPack, one for each component of the installed tree: run `cpack -G DEB` in a build
# folder that was configured with -DCMAKE_INSTALL_PREFIX=/usr (scripts/package.sh). The CUDA plug-in is in
# none: it needs NVIDIA's libraries, which Debian does not have.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME czero)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each package has its own
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/cmake/debian/finish.cmake)
set(CPACK_COMPONENTS_ALL runtime library development)
if(TARGET czero_mpi)
  list(APPEND CPACK_COMPONENTS_ALL mpi)
endif()
set(CPACK_DEB_COMPONENT_INSTALL ON)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "The czero authors <czero@invalid.invalid>")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(own ${PROJECT_VERSION})
set(abi ${PROJECT_VERSION_MAJOR})

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME czero)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION science)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SUGGESTS "libczero${abi}-mpi (= ${own}), librsvg2-2")
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "DeepSpeed-compatible training of transformer models
czero trains transformer models from a DeepSpeed JSON config: ZeRO stages 0
to 3, offload to host memory or NVMe, checkpoints in DeepSpeed's format.
.
This package has the programs czero and zero_to_fp32, example configs and the
documentation.")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libczero${abi})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SUGGESTS "libczero${abi}-mpi (= ${own})")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/cmake/debian/triggers)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "training engine for transformer models - shared library
czero trains transformer models from a DeepSpeed JSON config: ZeRO stages 0
to 3, offload to host memory or NVMe, checkpoints in DeepSpeed's format.
.
This package has the shared library.")

set(CPACK_DEBIAN_MPI_PACKAGE_NAME libczero${abi}-mpi)
set(CPACK_DEBIAN_MPI_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_MPI_PACKAGE_ENHANCES "czero, libczero${abi}")
set(CPACK_COMPONENT_MPI_DESCRIPTION "training engine for transformer models - MPI plug-in
czero trains transformer models from a DeepSpeed JSON config: ZeRO stages 0
to 3, offload to host memory or NVMe, checkpoints in DeepSpeed's format.
.
This package has the plug-in with which ranks that mpirun or srun starts
communicate. Ranks of one host that `czero launch` starts do not need it.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libczero-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
# The static library names what it needs by the run-time packages' files (cz_private_libs).
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libczero${abi} (= ${own})")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "training engine for transformer models - development files
czero trains transformer models from a DeepSpeed JSON config: ZeRO stages 0
to 3, offload to host memory or NVMe, checkpoints in DeepSpeed's format.
.
This package has the headers, the static library, a pkg-config file, a CMake
package and examples.")

include(CPack)
