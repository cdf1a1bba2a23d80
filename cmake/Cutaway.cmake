# One library per folder, one function per kind of target, and the flags that the determinism rules
# need (docs/architecture.md): no contraction, no fast-math, never -march=native.

find_package(Threads REQUIRED)
if(NOT CUTAWAY_ONLY_KERNELS)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
  pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
  pkg_check_modules(LIBZIP REQUIRED IMPORTED_TARGET libzip)
  pkg_check_modules(LIBCURL REQUIRED libcurl>=7.85)
  pkg_check_modules(LIBEDIT REQUIRED IMPORTED_TARGET libedit)
  find_package(OpenSSL REQUIRED)
  find_package(nlohmann_json REQUIRED)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM AND NOT CMAKE_CROSSCOMPILING)  # a cross compiler finds its own linker only
  add_link_options(-fuse-ld=mold)
endif()

add_compile_options(-Wall -Wextra -Wpedantic -Wno-unused-parameter -ffp-contract=off
                    -fno-fast-math -fno-omit-frame-pointer)
add_compile_definitions(FMT_HEADER_ONLY=1)
if(CUTAWAY_TRACE_COVERAGE)
  # Not below the level at which functions must open spans: these would be called too often, and the
  # runtime (src/trace) may not instrument itself.
  set(not_instrumented /usr/,src/base,src/tensor,src/trace,src/kernels)
  add_compile_definitions(CUTAWAY_TRACE_COVERAGE=1)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-finstrument-functions>"
    "$<$<COMPILE_LANGUAGE:CXX>:-finstrument-functions-exclude-file-list=${not_instrumented}>")
endif()

# cutaway_library(<folder> SOURCES … [DEPS …]): the library of one folder of src/.
function(cutaway_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(cutaway_${name} STATIC ${ARG_SOURCES})
  target_include_directories(cutaway_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src
                                                    ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(cutaway_${name} PUBLIC ${ARG_DEPS})
endfunction()

# cutaway_test(<name> SOURCES … [DEPS …] [LABELS …]): one GoogleTest binary, one CTest entry.
function(cutaway_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE CUTAWAY_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  if(NOT CUTAWAY_ONLY_KERNELS)
    target_compile_definitions(${name} PRIVATE CUTAWAY_BINARY="$<TARGET_FILE:cutaway>")
  endif()
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()

# cutaway_fuzzer(<name> SOURCES … DEPS …): a libFuzzer target; its libraries carry
# -fsanitize=fuzzer-no-link from the preset. Its saved corpus is fuzz/corpus/<name without _fuzz>/. The target
# `fuzzers` builds all of them.
function(cutaway_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  target_compile_definitions(${name} PRIVATE CUTAWAY_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  if(NOT TARGET fuzzers)
    add_custom_target(fuzzers)
  endif()
  add_dependencies(fuzzers ${name})
endfunction()
