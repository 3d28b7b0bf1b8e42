# CPack runs this between the install and the making of Debian packages: what Debian's policy asks of
# every package and `cmake --install` does not do.
set(here ${CMAKE_CURRENT_LIST_DIR})
set(date $ENV{SOURCE_DATE_EPOCH})
if(NOT date)
  string(TIMESTAMP date "%s" UTC)
endif()
execute_process(COMMAND date -u -R -d @${date} OUTPUT_VARIABLE date OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)

# gzip -n: no time of this machine in the file
function(compress file)
  execute_process(COMMAND gzip -9nf ${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

foreach(component ${CPACK_COMPONENTS_ALL})
  string(TOUPPER ${component} upper)
  set(package ${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
  set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/${component}/usr)
  set(doc ${root}/share/doc/${package})
  file(MAKE_DIRECTORY ${doc} ${root}/share/lintian/overrides)
  file(COPY_FILE ${here}/copyright ${doc}/copyright)
  file(WRITE ${doc}/changelog "czero (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium\n\n"
    "  * Version ${CPACK_PACKAGE_VERSION}: see CHANGELOG.md in /usr/share/doc/czero.\n\n"
    " -- ${CPACK_DEBIAN_PACKAGE_MAINTAINER}  ${date}\n")
  compress(${doc}/changelog)
  file(REMOVE ${root}/share/doc/czero/LICENSE) # the copyright file says it
  if(EXISTS ${here}/${package}.overrides)
    file(COPY_FILE ${here}/${package}.overrides ${root}/share/lintian/overrides/${package})
  endif()
  file(GLOB pages ${root}/share/man/man*/*.[1-9])
  foreach(page ${pages})
    compress(${page})
  endforeach()
  # The loader looks into the system's folder for libraries without a RUNPATH.
  file(GLOB_RECURSE files ${root}/bin/* ${root}/lib/*.so*)
  foreach(file ${files})
    if(NOT IS_SYMLINK ${file})
      file(RPATH_REMOVE FILE ${file})
    endif()
  endforeach()
  file(GLOB_RECURSE archives ${root}/lib/*.a)
  foreach(archive ${archives})
    execute_process(COMMAND strip --strip-debug --enable-deterministic-archives ${archive}
      COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endforeach()
