# libczero_cuda.so, opened at run time when the device asked for is "cuda": the only thing that is
# linked against CUDA. And the same sources against the simulated device, for tests.
include(CheckLanguage)
set(CMAKE_CUDA_ARCHITECTURES 80-real 90) # 8.0, 9.0, and PTX of 9.0 for what comes after
cz_choice(CZ_CUDA "Build the CUDA plug-in: ON, OFF, or AUTO where nvcc is found")
if(CZ_CUDA STREQUAL "ON" AND (CZ_FUZZ OR CZ_TSAN))
  message(FATAL_ERROR "CZ_CUDA=ON does not go with CZ_FUZZ or CZ_TSAN: their builds have no CUDA")
elseif(CZ_CUDA STREQUAL "OFF")
  message(STATUS "CUDA: left out (CZ_CUDA=OFF)")
elseif(NOT CZ_FUZZ AND NOT CZ_TSAN)
  if(CZ_CUDA STREQUAL "ON" AND NOT CMAKE_CUDA_COMPILER) # looked for again: it may be installed by now
    unset(CMAKE_CUDA_COMPILER CACHE)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
  elseif(CZ_CUDA STREQUAL "ON")
    message(FATAL_ERROR "CZ_CUDA=ON, but nvcc was not found, or it cannot compile: put it into PATH, "
      "name it with CUDACXX, or use CZ_CUDA=OFF")
  else()
    message(STATUS "CUDA: left out (nvcc not found)")
  endif()
else()
  message(STATUS "CUDA: left out (builds with CZ_FUZZ or CZ_TSAN have none)")
endif()

# Host sources that the plug-in has a copy of: pure arithmetic and checks.
set(CZ_CUDA_COPIES base/dtype.c base/host/thread.c base/rng.c base/size.c comm/peer_watch.c
  comm/exchange/pieces.c ops/checks.c
  ops/attention/attention_check.c ops/matmul/matmul_common.c ops/norm/norm_check.c)

function(cz_cuda_sources out)
  file(GLOB_RECURSE twins CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/device/cuda/*.c
    ${CMAKE_SOURCE_DIR}/ops/cuda/*.c ${CMAKE_SOURCE_DIR}/comm/nccl/*.c
    ${CMAKE_SOURCE_DIR}/ops/*_cuda.cu ${CMAKE_SOURCE_DIR}/device/cuda/*.cu
    ${CMAKE_SOURCE_DIR}/comm/nccl/*.cu)
  set(copies ${CZ_CUDA_COPIES})
  list(TRANSFORM copies PREPEND ${CMAKE_SOURCE_DIR}/)
  # what the front doors of op folders refuse
  file(GLOB checks CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/ops/*/*_check.c)
  set(${out} ${twins} ${copies} ${checks} PARENT_SCOPE)
endfunction()

function(cz_cuda_target target map)
  target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_options(${target} PRIVATE -Wl,--version-script=${map})
  set_target_properties(${target} PROPERTIES LINK_DEPENDS ${map} LINKER_LANGUAGE CXX)
endfunction()

# wgmma: instructions of 9.0 that no later device has, so neither plain PTX nor another capability.
# (The PTX of 9.0a is for the simulated device.) In the list their sources become objects.
function(cz_cuda_hopper list)
  set(sources ${${list}})
  set(hopper ${sources})
  list(FILTER hopper INCLUDE REGEX "_hopper_[a-z]+_cuda\\.cu$")
  list(REMOVE_ITEM sources ${hopper})
  add_library(czero_cuda_hopper OBJECT ${hopper})
  target_link_libraries(czero_cuda_hopper PRIVATE cz_flags)
  target_compile_options(czero_cuda_hopper PRIVATE $<TARGET_PROPERTY:czero_cuda,COMPILE_OPTIONS>)
  set_target_properties(czero_cuda_hopper PROPERTIES CUDA_ARCHITECTURES 90a
    POSITION_INDEPENDENT_CODE ON)
  set(${list} ${sources} $<TARGET_OBJECTS:czero_cuda_hopper> PARENT_SCOPE)
endfunction()

function(cz_cuda_plugin)
  if(NOT CUDAToolkit_FOUND)
    return()
  endif()
  cz_cuda_sources(sources)
  cz_cuda_hopper(sources)
  add_library(czero_cuda MODULE ${sources})
  cz_cuda_target(czero_cuda ${CMAKE_SOURCE_DIR}/device/cuda/plugin.map)
  target_link_libraries(czero_cuda PRIVATE cz_flags CUDA::cudart_static CUDA::cublasLt)
  if(NOT CZ_SANITIZE) # what is missing shows here, not on the machine that has a GPU
    target_link_options(czero_cuda PRIVATE -Wl,-z,defs)
  endif()
  target_compile_options(czero_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++17 --fmad=false
    -lineinfo "$<$<BOOL:${CZ_WERROR}>:SHELL:-Werror all-warnings>" -Xcompiler=-Wall,-Wno-unknown-pragmas>)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8) # a tenth of the size
    target_compile_options(czero_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
  endif()
  set_target_properties(czero_cuda PROPERTIES CUDA_RUNTIME_LIBRARY Static
    INSTALL_RPATH "$ORIGIN;${CUDAToolkit_LIBRARY_DIR}")
endfunction()

function(cz_cuda_sim_flags)
  add_library(cuda_sim_flags INTERFACE)
  target_link_libraries(cuda_sim_flags INTERFACE cz_flags)
  target_include_directories(cuda_sim_flags INTERFACE ${CMAKE_SOURCE_DIR}/tests/support/cuda_sim
    ${CMAKE_SOURCE_DIR}/tests/support/cuda_sim/ptx)
  target_include_directories(cuda_sim_flags SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_definitions(cuda_sim_flags INTERFACE CZ_CUDA_SIM)
  # -mfma: fmaf() as one instruction, as the simulated device is slow enough
  target_compile_options(cuda_sim_flags INTERFACE -mavx2 -mfma -mf16c
    $<$<COMPILE_LANGUAGE:CXX>:-std=c++17 -O2 -Wall -Wextra -Wno-unknown-pragmas
    -Wno-missing-field-initializers -ffp-contract=off -fno-strict-aliasing -fvisibility=hidden>)
  if(NOT CZ_SANITIZE) # x86 forgives accesses that are not aligned to their size, a GPU does not
    target_compile_options(cuda_sim_flags INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=alignment -fsanitize-undefined-trap-on-error>)
  endif()
endfunction()

# The simulated device needs CUDA's headers, not nvcc.
function(cz_cuda_sim)
  if(NOT CUDAToolkit_FOUND)
    return()
  endif()
  cz_cuda_sim_flags()
  file(GLOB_RECURSE doubles CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/support/cuda_sim/*.cc)
  add_library(cuda_sim OBJECT ${doubles})
  target_link_libraries(cuda_sim PRIVATE cuda_sim_flags)
  if(NOT CZ_SANITIZE) # the PTX interpreter's loops over lanes are vectors
    file(GLOB interpreter CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/support/cuda_sim/ptx/*.cc)
    set_source_files_properties(${interpreter} PROPERTIES COMPILE_OPTIONS -O3)
  endif()
  cz_cuda_sources(sources)
  add_library(czero_cuda_sim MODULE $<TARGET_OBJECTS:cuda_sim>)
  # A source has one language in a folder: the twins are included by C++ files made here.
  foreach(source ${sources})
    if(source MATCHES "\\.cu$")
      file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR} ${source})
      string(REPLACE "/" "__" flat ${name})
      set(wrap ${CMAKE_BINARY_DIR}/cuda_sim/src/${flat}.cc)
      file(CONFIGURE OUTPUT ${wrap} CONTENT "#include \"${name}\"\n" @ONLY)
      target_sources(czero_cuda_sim PRIVATE ${wrap})
    else()
      target_sources(czero_cuda_sim PRIVATE ${source})
    endif()
  endforeach()
  cz_cuda_target(czero_cuda_sim ${CMAKE_SOURCE_DIR}/tests/support/cuda_sim/plugin.map)
  target_link_libraries(czero_cuda_sim PRIVATE cuda_sim_flags Threads::Threads m)
  set_target_properties(czero_cuda_sim PROPERTIES OUTPUT_NAME czero_cuda
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/cuda_sim)
endfunction()

# The PTX that the plug-in's object files hold, for the simulated device to run.
function(cz_cuda_ptx)
  if(NOT TARGET czero_cuda OR NOT TARGET czero_cuda_sim)
    return()
  endif()
  add_executable(ptx_extract ${CMAKE_SOURCE_DIR}/tests/support/ptx_extract.cc)
  target_link_libraries(ptx_extract PRIVATE ${CMAKE_DL_LIBS})
  set(folder ${CMAKE_BINARY_DIR}/cuda_ptx)
  set(objects $<TARGET_OBJECTS:czero_cuda> $<TARGET_OBJECTS:czero_cuda_hopper>)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(OUTPUT ${folder}/entries.txt
    COMMAND ptx_extract ${folder} ${objects}
    DEPENDS ptx_extract ${objects}
    COMMENT "Taking the kernels' PTX out of the plug-in's objects"
    COMMAND_EXPAND_LISTS VERBATIM)
  add_custom_target(cuda_ptx ALL DEPENDS ${folder}/entries.txt)
endfunction()

# A program that runs any PTX file on the simulated device (tests/interop/models/triton_oracle.py).
function(cz_ptx_file)
  if(NOT TARGET cuda_sim)
    return()
  endif()
  add_executable(ptx_file ${CMAKE_SOURCE_DIR}/tests/gpu_sim/ptx_file.c $<TARGET_OBJECTS:cuda_sim>)
  target_include_directories(ptx_file SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(ptx_file PRIVATE cz_flags Threads::Threads m)
  set_target_properties(ptx_file PROPERTIES LINKER_LANGUAGE CXX
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/gpu_sim)
endfunction()

# Programs of tests/gpu_sim test the simulated device itself: they have it linked in, with the
# kernels of that folder.
function(cz_cuda_sim_test target)
  if(NOT TARGET cuda_sim_kernels)
    file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/gpu_sim/*.cc)
    add_library(cuda_sim_kernels OBJECT ${kernels})
    target_link_libraries(cuda_sim_kernels PRIVATE cuda_sim_flags)
  endif()
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:cuda_sim> $<TARGET_OBJECTS:cuda_sim_kernels>)
  target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(${target} PRIVATE Threads::Threads)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  set_property(TEST ${target} APPEND PROPERTY LABELS cuda)
endfunction()
