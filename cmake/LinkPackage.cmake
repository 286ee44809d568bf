# cmake -D FROM=python/transfer_dock -D TO=folder -D PROGRAM=path/tdock-dock -P LinkPackage.cmake
#
# Makes TO a package: links to every file of FROM, the server in bin/, and what is there besides (the extension).
file(GLOB_RECURSE old LIST_DIRECTORIES false ${TO}/*)
foreach(file ${old})
  if(IS_SYMLINK ${file} AND NOT EXISTS ${file})
    file(REMOVE ${file})
  endif()
endforeach()
file(GLOB_RECURSE sources RELATIVE ${FROM} ${FROM}/*.py ${FROM}/*.pyi ${FROM}/*.yaml ${FROM}/py.typed)
foreach(file ${sources})
  get_filename_component(folder ${TO}/${file} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  file(CREATE_LINK ${FROM}/${file} ${TO}/${file} SYMBOLIC)
endforeach()
file(MAKE_DIRECTORY ${TO}/bin)
file(CREATE_LINK ${PROGRAM} ${TO}/bin/tdock-dock SYMBOLIC)
