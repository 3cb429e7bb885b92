# Included before project(): sets BLU_VERSION, and BLU_FULL_VERSION with what follows the numbers (0.2.0rc1), from the package's
# pyproject.toml, the one place that states it (`hatch version` edits it there), so that a plain `cmake -S packages/<name>`
# works as well as a wheel build.
file(STRINGS "${CMAKE_CURRENT_SOURCE_DIR}/pyproject.toml" _blu_version_line REGEX "^version *= *\"[0-9.]+" LIMIT_COUNT 1)
string(REGEX REPLACE "^version *= *\"([^\"]*)\".*" "\\1" BLU_FULL_VERSION "${_blu_version_line}")
string(REGEX MATCH "^[0-9]+\\.[0-9]+\\.[0-9]+" BLU_VERSION "${BLU_FULL_VERSION}")
if(NOT BLU_VERSION)
  message(FATAL_ERROR "expected a line version = \"X.Y.Z\" in ${CMAKE_CURRENT_SOURCE_DIR}/pyproject.toml, got '${_blu_version_line}'")
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/pyproject.toml")
