# cmake --install BUILD --prefix PREFIX: the dock as a library, and the command that serves and shows it.
#
#   find_package(tdock REQUIRED)
#   target_link_libraries(mine PRIVATE tdock::dock)

# The modules that the headers in include/tdock need, each after those that it uses.
set(installed_modules core/base core/tensor core/net dock/table dock/store dock/local dock/compat/mindspeed dock/service/wire)

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tdock)

tdock_targets(installed_targets ${installed_modules})
add_library(tdock_public INTERFACE)
set_target_properties(tdock_public PROPERTIES EXPORT_NAME dock)
target_link_libraries(tdock_public INTERFACE ${installed_targets})
target_compile_features(tdock_public INTERFACE cxx_std_20)

install(TARGETS tdock_public ${installed_targets} EXPORT tdock
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tdock DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h)
install(EXPORT tdock NAMESPACE tdock:: FILE tdockTargets.cmake DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tdockConfig.cmake.in ${CMAKE_BINARY_DIR}/tdockConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/tdockConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/tdockConfig.cmake ${CMAKE_BINARY_DIR}/tdockConfigVersion.cmake
        DESTINATION ${package_dir})
install(TARGETS tdock-dock RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
