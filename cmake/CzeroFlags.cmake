# Language, warnings and the flags of instruction-set rows.
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# Release keeps assert(): our invariants cost nothing measurable outside kernels, which have none.
set(CMAKE_C_FLAGS_RELEASE "-O3 -g1")

add_library(cz_flags INTERFACE)
# -ffp-contract=off: optimizer rows are equal to the bit, so fused multiply-adds are written out.
target_compile_options(cz_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wconversion -Wshadow -Wmissing-prototypes
    -Wstrict-prototypes -Wno-format-truncation
    -Wno-missing-field-initializers $<$<BOOL:${CZ_WERROR}>:-Werror> -ffp-contract=off -fno-math-errno -fno-strict-aliasing>)
target_compile_definitions(cz_flags INTERFACE _GNU_SOURCE _FILE_OFFSET_BITS=64)
target_include_directories(cz_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)

if(CZ_SANITIZE)
  target_compile_options(cz_flags INTERFACE -fsanitize=address,undefined
    -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(cz_flags INTERFACE -fsanitize=address,undefined)
endif()
if(CZ_TSAN) # OpenMP is off: its pragmas mean nothing, loops over pieces run in one thread
  target_compile_options(cz_flags INTERFACE -fsanitize=thread -Wno-unknown-pragmas
    -Wno-unused-variable -Wno-unused-but-set-variable -Wno-unused-parameter)
  target_link_options(cz_flags INTERFACE -fsanitize=thread)
endif()
if(CZ_FUZZ) # the first finding ends a run; clang's own warnings are not the project's
  set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=all)
  if(CZ_FUZZ STREQUAL "FAST")
    set(sanitize -fsanitize=undefined -fsanitize-trap=undefined)
  endif()
  target_compile_options(cz_flags INTERFACE ${sanitize} -fno-omit-frame-pointer -O2
    -Wno-error -Wno-unknown-pragmas -Wno-unknown-warning-option)
  target_link_options(cz_flags INTERFACE ${sanitize})
endif()

if(CZ_SANITIZE OR CZ_TSAN)
  # Sanitizers open libraries in the program's place, and their own RUNPATH would count: RPATH is the program's for all libraries, so that plug-ins are found.
  target_link_options(cz_flags INTERFACE -Wl,--disable-new-dtags)
endif()

# <op>_<isa>.c is compiled for that instruction set; every other file for the baseline.
set(CZ_ISA_avx2 -mavx2 -mfma -mf16c)
set(CZ_ISA_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
    -mprefer-vector-width=512)
set(CZ_ISA_avx512bf16 ${CZ_ISA_avx512} -mavx512bf16)
set(CZ_ISA_amx ${CZ_ISA_avx512} -mamx-tile -mamx-bf16)

function(cz_isa_flags)
  foreach(file ${ARGN})
    if(file MATCHES "_(avx2|avx512|avx512bf16|amx)\\.c$")
      set(flags ${CZ_ISA_${CMAKE_MATCH_1}})
      # One function of norm's vector rows takes gcc minutes and a gigabyte to instrument; the
      # agreement tests' guard bytes watch its edges instead.
      if(CZ_SANITIZE AND file MATCHES "/norm_avx")
        list(APPEND flags -fno-sanitize=all)
      endif()
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${flags}")
    endif()
  endforeach()
endfunction()
