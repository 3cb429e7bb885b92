# Included before project(): sets BLU_VERSION from the package's pyproject.toml, the one place that states it
# (`hatch version` edits it there), so that a plain `cmake -S packages/<name>` works as well as a wheel build.
file(STRINGS "${CMAKE_CURRENT_SOURCE_DIR}/pyproject.toml" _blu_version_line REGEX "^version *= *\"[0-9.]+" LIMIT_COUNT 1)
string(REGEX REPLACE "^version *= *\"([0-9.]+[0-9]).*" "\\1" BLU_VERSION "${_blu_version_line}")
if(NOT BLU_VERSION MATCHES "^[0-9]+\\.[0-9]+\\.[0-9]+$")
  message(FATAL_ERROR "expected a line version = \"X.Y.Z\" in ${CMAKE_CURRENT_SOURCE_DIR}/pyproject.toml, got '${_blu_version_line}'")
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/pyproject.toml")
