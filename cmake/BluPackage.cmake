# Shared by every native package: compiler settings, the library with what its wheel exports, native tests,
# per-file instruction sets. Lives in <root>/cmake; a source distribution carries a copy in <sdist>/cmake.
#
#   blu_native_library(<name> SOURCES ... [DEPS ...] [EXACT_DEPS ...])
#   blu_cpu_kernel(<name> <file> avx2|avx512)
#   blu_native_test(<test> SOURCES ... [ARGS ...] [TIMEOUT seconds])
#   blu_fuzz_target(<target> SOURCE <file> DRIVER <file> CORPUS <folder> RUNS <number>)
include_guard(GLOBAL)
include(CMakePackageConfigHelpers)

option(BLU_WERROR "Warnings in our code are errors" OFF)
option(BLU_CCACHE "Compile through ccache when it is on PATH" ON)
option(BLU_BUILD_TESTS "Build the native test executables" OFF)
option(BLU_FUZZ "Build the fuzz targets for libFuzzer (Clang)" OFF)
set(BLU_SANITIZE "" CACHE STRING "Sanitizers for everything, as in -fsanitize=, e.g. address,undefined")

if(BLU_BUILD_TESTS)
  enable_testing()
endif()

# ---- compiler settings -----------------------------------------------------------------------------------------
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# -O2: a build from nothing is part of a newcomer's first eight minutes; kernel files ask for -O3 themselves.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(BLU_KERNEL_OPTIMIZATION -O3)
if(BLU_SANITIZE)
  # Assertions stay. More than -O1 takes minutes for an unrolled kernel full of checks.
  set(CMAKE_CXX_FLAGS_RELEASE "-O1")
  set(BLU_KERNEL_OPTIMIZATION -O1)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF) # no modules here, and the scan is one more process per file
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
find_package(Threads REQUIRED)

if(BLU_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(BLU_CCACHE_PROGRAM ccache)
  if(BLU_CCACHE_PROGRAM)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${BLU_CCACHE_PROGRAM}")
  endif()
endif()

add_library(blu_settings INTERFACE)
# The host compiler's; nvcc's are in BluCUDA.cmake.
function(blu_compile_options)
  foreach(option IN LISTS ARGN)
    target_compile_options(blu_settings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${option}>")
  endforeach()
endfunction()
blu_compile_options(
  -Wall -Wextra -Wpedantic -Wshadow
  # The bits of a result must not depend on which expressions the compiler happened to fuse: a kernel that wants
  # FMA says so (std::fma or an intrinsic).
  -ffp-contract=off
  # Nobody reads errno after sqrt(), and without it sqrt is one instruction.
  -fno-math-errno)
if(BLU_WERROR)
  blu_compile_options(-Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # These depend on what the optimizer inlined and are wrong about standard containers in one GCC or another:
    # shown everywhere, an error nowhere.
    blu_compile_options(-Wno-error=maybe-uninitialized -Wno-error=array-bounds
      -Wno-error=stringop-overflow -Wno-error=stringop-overread -Wno-error=restrict -Wno-error=free-nonheap-object)
    if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
      blu_compile_options(-Wno-error=dangling-reference)
    endif()
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  blu_compile_options(-Wno-restrict) # GCC bug 105651: every text + std::string
endif()
if(BLU_SANITIZE)
  blu_compile_options(
    -fsanitize=${BLU_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  target_link_options(blu_settings INTERFACE -fsanitize=${BLU_SANITIZE})
endif()

if(BLU_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "BLU_FUZZ: expected Clang, which brings libFuzzer, got ${CMAKE_CXX_COMPILER_ID}")
  endif()
  blu_compile_options(-fsanitize=fuzzer-no-link)
endif()

include(BluCUDA)

# ---- upstream packages -----------------------------------------------------------------------------------------
# find_package() that forgets what another environment left in a kept build tree.
macro(blu_find package)
  unset(${package}_DIR CACHE)
  find_package(${package} CONFIG REQUIRED)
  message(STATUS "${PROJECT_NAME}: ${package} ${${package}_VERSION} from ${${package}_DIR}")
endmacro()

# <prefix>_MAJOR and <prefix>_MINOR out of a public header: the header is the one place that states the ABI.
function(blu_read_abi header prefix)
  foreach(part MAJOR MINOR)
    file(STRINGS "${header}" line REGEX "^#define BLU[A-Z]+_ABI_${part} +[0-9]+" LIMIT_COUNT 1)
    if(NOT line MATCHES "_ABI_${part} +([0-9]+)")
      message(FATAL_ERROR "expected a line #define <NAME>_ABI_${part} <number> in ${header}")
    endif()
    set(${prefix}_${part} ${CMAKE_MATCH_1} PARENT_SCOPE)
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
endfunction()

# ---- the library -----------------------------------------------------------------------------------------------
# blu_native_library(<name> SOURCES ... [DEPS ...] [EXACT_DEPS ...])
#   DEPS        upstreams used through their stable ABI: same major, at least the minor we were built against
#   EXACT_DEPS  upstreams used beyond it: same major and minor
# Installed (= in the wheel):
#   lib<name>/__init__.py                    generated: VERSION, root(), load_library(), abi_version()
#   lib<name>/lib/lib<name>.so.<ABI major>
#   lib<name>/include/<name>/...             the package's include folder
#   lib<name>/lib/cmake/<name>/              blu::<name> for find_package(<name>)
# The sources are compiled once, into <name>_objects, which native tests link too: they test what is not exported.
function(blu_native_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;EXACT_DEPS" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS OR NOT ARG_SOURCES)
    message(FATAL_ERROR "blu_native_library(${name}): expected SOURCES, DEPS, EXACT_DEPS, got ${ARGN}")
  endif()
  set(prefix lib${name})
  set(include "${CMAKE_CURRENT_SOURCE_DIR}/include")
  blu_read_abi("${include}/${name}/${name}.h" ABI)

  add_library(${name}_objects OBJECT ${ARG_SOURCES})
  target_include_directories(${name}_objects PUBLIC "${include}" "${CMAKE_CURRENT_SOURCE_DIR}/native")
  target_link_libraries(${name}_objects PUBLIC Threads::Threads blu_settings)
  string(TOUPPER ${name} upper)
  target_compile_definitions(${name}_objects PRIVATE ${upper}_BUILDING)

  add_library(${name} SHARED)
  add_library(blu::${name} ALIAS ${name})
  target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:${name}_objects>)
  target_include_directories(${name} PUBLIC
    "$<BUILD_INTERFACE:${include}>" "$<INSTALL_INTERFACE:${prefix}/include>")

  set(rpath "$ORIGIN")
  set(built_against "")
  set(config "include(CMakeFindDependencyMacro)\n")
  foreach(dep IN LISTS ARG_DEPS ARG_EXACT_DEPS)
    blu_find(${dep})
    target_link_libraries(${name}_objects PUBLIC blu::${dep})
    target_link_libraries(${name} PUBLIC blu::${dep})
    list(APPEND rpath "$ORIGIN/../../lib${dep}/lib")
    string(APPEND config "find_dependency(${dep} CONFIG)\n")
    get_target_property(dep_include blu::${dep} INTERFACE_INCLUDE_DIRECTORIES)
    blu_read_abi("${dep_include}/${dep}/${dep}.h" DEP)
    set(exact False)
    if(dep IN_LIST ARG_EXACT_DEPS)
      set(exact True)
    endif()
    string(APPEND built_against "\n    \"${dep}\": (${DEP_MAJOR}, ${DEP_MINOR}, ${exact}, \"${${dep}_VERSION}\"),")
  endforeach()
  if(built_against)
    string(APPEND built_against "\n")
  endif()

  # now + no-undefined: a missing symbol fails at link or import, never in the middle of a run.
  # exclude-libs: nothing of a static archive is exported again. version script: neither are the standard library's
  # templates, which hidden visibility does not hide; what is exported is the C interface and nothing else.
  set(exports "${CMAKE_CURRENT_BINARY_DIR}/generated/${name}.map")
  file(CONFIGURE OUTPUT "${exports}" CONTENT "{ global: ${name}_*; local: *; };\n" @ONLY)
  target_link_options(${name} PRIVATE
    LINKER:-z,now LINKER:--no-undefined LINKER:--exclude-libs,ALL "LINKER:--version-script,${exports}")
  set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS "${exports}")
  # Wheels hold no symbolic links (each would be one more full copy): one file, named as its SONAME.
  set_target_properties(${name} PROPERTIES SOVERSION ${ABI_MAJOR} VERSION ${ABI_MAJOR} INSTALL_RPATH "${rpath}")

  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Conversions of _Float16 are in libgcc_s from GCC 12 on; from the static part of libgcc, wheels run on older systems.
    # The unwinder stays the shared one of the process.
    target_link_libraries(${name} PRIVATE gcc)
  endif()

  set(generated "${CMAKE_CURRENT_BINARY_DIR}/generated")
  string(APPEND config "include(\"\${CMAKE_CURRENT_LIST_DIR}/${name}-targets.cmake\")\n")
  file(CONFIGURE OUTPUT "${generated}/${name}-config.cmake" CONTENT "${config}" @ONLY)
  write_basic_package_version_file("${generated}/${name}-config-version.cmake"
    VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
  set(BLU_NAME ${name})
  set(BLU_ABI_MAJOR ${ABI_MAJOR})
  set(BLU_ABI_MINOR ${ABI_MINOR})
  set(BLU_BUILT_AGAINST "${built_against}")
  configure_file("${CMAKE_CURRENT_FUNCTION_LIST_DIR}/lib_init.py.in" "${generated}/__init__.py" @ONLY)
  file(TOUCH "${generated}/py.typed")

  install(TARGETS ${name} EXPORT ${name}-targets LIBRARY DESTINATION ${prefix}/lib NAMELINK_SKIP)
  install(DIRECTORY include/ DESTINATION ${prefix}/include)
  install(EXPORT ${name}-targets NAMESPACE blu:: DESTINATION ${prefix}/lib/cmake/${name})
  install(FILES "${generated}/${name}-config.cmake" "${generated}/${name}-config-version.cmake"
    DESTINATION ${prefix}/lib/cmake/${name})
  install(FILES "${generated}/__init__.py" "${generated}/py.typed" DESTINATION ${prefix})
endfunction()

# ---- instruction sets ------------------------------------------------------------------------------------------
# blu_cpu_kernel(<library> <file> avx2|avx512): compiles one file for one instruction set, at -O3. On other processors
# the file is left out and <LIBRARY>_HAVE_AVX2 / _AVX512 stays undefined, so that the dispatch table, which is built
# everywhere, keeps its portable entries. Never call into such a file before CPUID was asked.
function(blu_cpu_kernel library file isa)
  if(isa STREQUAL "avx2")
    set(flags -mavx2 -mfma -mf16c)
  elseif(isa STREQUAL "avx512")
    set(flags -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  else()
    message(FATAL_ERROR "blu_cpu_kernel(${library} ${file}): expected avx2 or avx512, got ${isa}")
  endif()
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    return()
  endif()
  target_sources(${library}_objects PRIVATE ${file})
  set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS ${flags} ${BLU_KERNEL_OPTIMIZATION})
  string(TOUPPER "${library}_HAVE_${isa}" definition)
  target_compile_definitions(${library}_objects PUBLIC ${definition}=1)
endfunction()

# ---- native tests ----------------------------------------------------------------------------------------------
# blu_native_test(<test> SOURCES ... [ARGS ...] [TIMEOUT seconds]): an executable over the objects of the package's
# library, run by ctest; exit status 0 is a pass. Nothing happens without BLU_BUILD_TESTS.
function(blu_native_test test)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;ARGS" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS OR NOT ARG_SOURCES)
    message(FATAL_ERROR "blu_native_test(${test}): expected SOURCES, ARGS, TIMEOUT, got ${ARGN}")
  endif()
  if(NOT BLU_BUILD_TESTS)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${test} ${ARG_SOURCES})
  target_link_libraries(${test} PRIVATE ${PROJECT_NAME}_objects)
  add_test(NAME ${test} COMMAND ${test} ${ARG_ARGS})
  set_tests_properties(${test} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()

# blu_fuzz_target(<target> SOURCE <file> DRIVER <file> CORPUS <folder> RUNS <number>): SOURCE defines
# LLVMFuzzerTestOneInput. With BLU_FUZZ it becomes a libFuzzer executable, <target>; a native test <target>_replay runs it
# with any compiler, through DRIVER: on the corpus and on RUNS mutations of it.
function(blu_fuzz_target target)
  cmake_parse_arguments(ARG "" "SOURCE;DRIVER;CORPUS;RUNS" "" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS OR NOT ARG_SOURCE OR NOT ARG_DRIVER OR NOT ARG_CORPUS OR NOT ARG_RUNS)
    message(FATAL_ERROR "blu_fuzz_target(${target}): expected SOURCE, DRIVER, CORPUS, RUNS, got ${ARGN}")
  endif()
  blu_native_test(${target}_replay SOURCES ${ARG_SOURCE} ${ARG_DRIVER}
    ARGS "${CMAKE_CURRENT_SOURCE_DIR}/${ARG_CORPUS}" ${ARG_RUNS})
  if(BLU_FUZZ)
    add_executable(${target} ${ARG_SOURCE})
    target_link_libraries(${target} PRIVATE ${PROJECT_NAME}_objects)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  endif()
endfunction()
