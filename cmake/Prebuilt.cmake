# A wheel of what another folder has built (scripts/wheel.sh): the executables of TDOCK_PREBUILT, and the extension of
# TDOCK_PREBUILT_EXTENSION. Nothing is compiled.
add_custom_target(tdock_wheel)
foreach(component python=${TDOCK_PREBUILT} python_extension=${TDOCK_PREBUILT_EXTENSION})
  string(REPLACE "=" ";" component ${component})
  list(POP_FRONT component name folder)
  install(CODE "execute_process(COMMAND \${CMAKE_COMMAND} --install ${folder} --component ${name} --strip
                                        --prefix \${CMAKE_INSTALL_PREFIX} COMMAND_ERROR_IS_FATAL ANY)" COMPONENT python)
endforeach()
