# tdock_proto(TARGET FILE)
#
# The static library TARGET of the messages in FILE, X.proto: sources that include its headers write "X.pb.h".
function(tdock_proto target file)
  get_filename_component(name ${file} NAME_WE)
  get_filename_component(folder ${file} DIRECTORY)
  set(generated ${CMAKE_BINARY_DIR}/proto)
  file(MAKE_DIRECTORY ${generated})
  add_custom_command(
    OUTPUT ${generated}/${name}.pb.cc ${generated}/${name}.pb.h
    COMMAND protobuf::protoc --proto_path=${folder} --cpp_out=${generated} ${file}
    DEPENDS ${file} VERBATIM)
  add_library(${target} STATIC ${generated}/${name}.pb.cc ${generated}/${name}.pb.h)
  target_compile_options(${target} PRIVATE -w)
  target_include_directories(${target} SYSTEM PUBLIC $<BUILD_INTERFACE:${generated}>)
  target_link_libraries(${target} PUBLIC protobuf::libprotobuf-lite)
endfunction()
