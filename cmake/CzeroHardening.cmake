# What makes a defect harder to exploit: addresses that cannot be guessed, relocations that are read-only
# before main() begins, checks of the stack and of the sizes of buffers. tests/install/test_elf_flags.sh
# looks at every program and library. A flag that CFLAGS or LDFLAGS already decides is left to them.
option(CZ_HARDEN "Stack protector, _FORTIFY_SOURCE, read-only relocations, immediate binding" ON)

# Programs and libraries look for ours beside themselves, never in the current folder: CMake pads the
# paths of build folders with empty elements, which mean it, if an installed file has others.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)

if(NOT CZ_HARDEN OR CZ_SANITIZE OR CZ_TSAN OR CZ_FUZZ) # sanitizers check more, and replace the same calls
  return()
endif()
include(CheckCCompilerFlag)
include(CheckCSourceCompiles)
include(CheckLinkerFlag)
include(CheckPIESupported)
check_pie_supported(LANGUAGES C CXX) # else only compilers whose default it is make them

# To the compilers of C and C++, and to the one that nvcc calls for the host's part.
function(cz_harden_compile)
  list(JOIN ARGN " " flags)
  list(JOIN ARGN "," for_nvcc)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:SHELL:${flags}>"
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler=${for_nvcc}>")
endfunction()

if(NOT CMAKE_C_FLAGS MATCHES "stack-protector")
  check_c_compiler_flag(-fstack-protector-strong CZ_HAS_STACK_PROTECTOR)
  if(CZ_HAS_STACK_PROTECTOR)
    cz_harden_compile(-fstack-protector-strong)
  endif()
endif()

# The C library takes the level where it and the compiler know it, and only with optimization.
string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
if(NOT "${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_${type}}" MATCHES "_FORTIFY_SOURCE")
  foreach(level 3 2)
    set(CMAKE_REQUIRED_FLAGS "${CMAKE_C_FLAGS_${type}} -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=${level}")
    check_c_source_compiles("#include <stdio.h>\n#if __USE_FORTIFY_LEVEL < ${level}\n#error\n#endif\nint main(void) { return 0; }"
      CZ_HAS_FORTIFY_${level}_${type})
    unset(CMAKE_REQUIRED_FLAGS)
    if(CZ_HAS_FORTIFY_${level}_${type})
      cz_harden_compile(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=${level})
      break()
    endif()
  endforeach()
endif()

if(NOT "${CMAKE_EXE_LINKER_FLAGS} ${CMAKE_SHARED_LINKER_FLAGS}" MATCHES "-z,?(norelro|lazy)")
  check_linker_flag(C "LINKER:-z,relro,-z,now" CZ_HAS_RELRO_NOW)
  if(CZ_HAS_RELRO_NOW)
    add_link_options("LINKER:-z,relro,-z,now")
  endif()
endif()
