# `cmake --install` and the Debian package: programs, systemd units, configuration, completions.
# scripts/make_package.sh makes the package.
include(GNUInstallDirs)

install(TARGETS tandem tandem-router tandem-prefill-node tandem-decode-node
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# Units name the programs where they are installed: below /usr in the package.
file(GLOB units ${CMAKE_SOURCE_DIR}/deploy/systemd/*.service)
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/units)  # of the builder, also if root installs
foreach(unit ${units})
  install(CODE "
    file(READ \"${unit}\" text)
    string(REPLACE /usr/bin/ \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/\" text \"\${text}\")
    get_filename_component(name \"${unit}\" NAME)
    file(REMOVE \"${CMAKE_CURRENT_BINARY_DIR}/units/\${name}\")
    file(WRITE \"${CMAKE_CURRENT_BINARY_DIR}/units/\${name}\" \"\${text}\")
    file(INSTALL \"${CMAKE_CURRENT_BINARY_DIR}/units/\${name}\"
         DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/systemd/system\")")
endforeach()
install(FILES ${CMAKE_SOURCE_DIR}/deploy/systemd/sysusers.conf DESTINATION lib/sysusers.d
        RENAME tandem.conf)
# What an operator has changed stays.
file(GLOB configuration ${CMAKE_SOURCE_DIR}/deploy/systemd/*.yaml)
foreach(file ${configuration})
  get_filename_component(name ${file} NAME)
  install(CODE "
    if(EXISTS \"\$ENV{DESTDIR}/etc/tandem/${name}\")
      message(STATUS \"Kept: \$ENV{DESTDIR}/etc/tandem/${name}\")
    else()
      file(INSTALL \"${file}\" DESTINATION /etc/tandem)
    endif()")
endforeach()
install(FILES README.md CHANGELOG.md DESTINATION share/doc/tandem)
install(FILES deploy/systemd/README.md DESTINATION share/doc/tandem RENAME README.services.md)
install(FILES LICENSE DESTINATION share/doc/tandem RENAME copyright)
# The shells' completions, as the program itself prints them.
set(bash_completion share/bash-completion/completions/tandem)
set(zsh_completion share/zsh/vendor-completions/_tandem)
set(fish_completion share/fish/vendor_completions.d/tandem.fish)
foreach(shell bash zsh fish)
  install(CODE "
    set(file \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${${shell}_completion}\")
    execute_process(COMMAND \"$<TARGET_FILE:tandem>\" completion ${shell}
                    OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE \"\${file}\" \"\${text}\")")
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tandem)
set(CPACK_PACKAGE_CONTACT "Tandem maintainers <maintainers@tandem.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "disaggregated LLM serving: router, prefill and decode nodes")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "Serves language models over OpenAI's, Anthropic's and Ollama's HTTP APIs and gRPC. Prefill nodes
read prompts, decode nodes write answers, and a router places both. Equal requests get equal
answers, bit for bit.")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "adduser")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "ca-certificates")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
    ${CMAKE_SOURCE_DIR}/deploy/debian/postinst ${CMAKE_SOURCE_DIR}/deploy/debian/prerm
    ${CMAKE_SOURCE_DIR}/deploy/debian/postrm ${CMAKE_SOURCE_DIR}/deploy/debian/conffiles)
set(CPACK_STRIP_FILES ON)
# The configuration lies outside the prefix.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/package)
include(CPack)
