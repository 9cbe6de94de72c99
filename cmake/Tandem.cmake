# Build rules shared by every folder. A folder names its dependencies; its sources are what lies in it.

# The flags every target of ours is built with.
add_library(tandem_flags INTERFACE)
target_compile_options(tandem_flags INTERFACE -Wall -Wextra -Werror -Wno-missing-field-initializers
  -ffp-contract=off -fno-strict-aliasing $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)
target_include_directories(tandem_flags INTERFACE ${CMAKE_SOURCE_DIR})
if(TANDEM_SANITIZE)
  # What undefined behaviour is found ends the program: a line on standard error fails no test.
  target_compile_options(tandem_flags INTERFACE -fsanitize=${TANDEM_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  target_link_options(tandem_flags INTERFACE -fsanitize=${TANDEM_SANITIZE})
  # Instrumented code makes g++ 12 see uninitialised values where there are none (Boost's optional).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(tandem_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()
if(TANDEM_FUZZ)
  target_compile_options(tandem_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# tandem_combine(sources): with TANDEM_UNITY, replaces the .cc files of the list `sources` by files that
# include up to ten of them each. Most of a source's compile time goes into the headers of gRPC, Abseil and
# JSON, which ten sources then read once. Their anonymous namespaces become one, so names in them must
# differ within a folder. A source with compile options of its own stays apart, and so do one that tests
# replace by a mutated copy (it includes common/base/mutation.h) and one that includes ncurses, whose macros
# have the names of others' functions. (CMake's UNITY_BUILD includes by absolute
# path, so that ccache finds nothing from another checkout.)
function(tandem_combine list)
  if(NOT TANDEM_UNITY)
    return()
  endif()
  set(kept "")
  set(combined "")
  foreach(source ${${list}})
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    set(mutated "")
    if(source MATCHES "\\.cc$")
      file(STRINGS ${source} mutated REGEX "#include (\"common/base/mutation.h\"|<curses.h>)")
    endif()
    if(source MATCHES "\\.cc$" AND NOT options AND NOT mutated)
      file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${source})
      list(APPEND combined ${path})
    else()
      list(APPEND kept ${source})
    endif()
  endforeach()
  list(LENGTH combined count)
  math(EXPR batches "(${count} + 9) / 10")
  set(from 0)
  foreach(batch RANGE 1 ${batches})
    if(count EQUAL 0)
      break()
    endif()
    # Batches of one size, but for a source more in some.
    math(EXPR to "${count} * ${batch} / ${batches}")
    math(EXPR length "${to} - ${from}")
    list(SUBLIST combined ${from} ${length} paths)
    list(JOIN paths "\"\n#include \"" text)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/unity/unity_${batch}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "#include \"${text}\"\n" @ONLY)  # writes only changes
    list(APPEND kept ${file})
    set(from ${to})
  endforeach()
  set(${list} ${kept} PARENT_SCOPE)
endfunction()

# tandem_library(base DEPS absl::status ...): a library `tandem_base`, alias `tandem::base`, of every
# .cc file in this folder and below, except main.cc.
function(tandem_library name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cc *.h)
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  set(compiled ${sources})
  list(FILTER compiled INCLUDE REGEX "\\.cc$")
  tandem_combine(sources)
  if(compiled)
    add_library(tandem_${name} STATIC ${sources})
    target_link_libraries(tandem_${name} PUBLIC tandem_flags ${ARG_DEPS})
    if(TANDEM_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # g++ takes types of the anonymous namespace in an included .cc file for types of a header.
      target_compile_options(tandem_${name} PRIVATE -Wno-subobject-linkage)
    endif()
  else()
    add_library(tandem_${name} INTERFACE)
    target_link_libraries(tandem_${name} INTERFACE tandem_flags ${ARG_DEPS})
  endif()
  add_library(tandem::${name} ALIAS tandem_${name})
endfunction()

# tandem_binary(tandem-router DEPS ...): an executable from this folder's main.cc.
function(tandem_binary name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  add_executable(${name} main.cc)
  target_link_libraries(${name} PRIVATE tandem_flags ${ARG_DEPS})
endfunction()

# tandem_test(unit_base DEPS ...): one gtest executable of every *_test.cc in this folder; each TEST is
# a ctest test of its own. TIMEOUT in seconds (default 120); LABELS as ctest's.
function(tandem_test name)
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT" "DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS *_test.cc)
  if(NOT sources)
    return()
  endif()
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE tandem_flags tandem::testing GTest::gmock GTest::gtest_main ${ARG_DEPS})
  target_compile_definitions(${name} PRIVATE TANDEM_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    TANDEM_BINARY_DIR="${CMAKE_BINARY_DIR}")
  if(TANDEM_SANITIZE)
    target_compile_definitions(${name} PRIVATE TANDEM_SANITIZED)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  set(serial "")
  if(ARG_SERIAL)
    set(serial RUN_SERIAL TRUE)
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" ${serial})
endfunction()
