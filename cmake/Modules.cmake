include(EmbedFile)
include(Protobuf)

# The order of modules. Each may include the headers of those that it uses, of those that they use, and of no other.

tdock_module(base LINKS absl::status absl::statusor absl::strings absl::str_format absl::time absl::flat_hash_set Threads::Threads
             nlohmann_json::nlohmann_json)
tdock_module(config USES base LINKS absl::flat_hash_map absl::flat_hash_set PRIVATE_LINKS yaml-cpp)
tdock_module(tensor USES base LINKS absl::inlined_vector absl::flat_hash_map PRIVATE_LINKS xxhash)
tdock_module(arena USES tensor)
tdock_module(dock USES arena LINKS absl::flat_hash_map absl::flat_hash_set absl::btree TEST_USES dock LONG_TESTS Linear.*)
tdock_module(mindspeed USES dock LINKS absl::flat_hash_map)
tdock_proto(tdock_messages ${PROJECT_SOURCE_DIR}/proto/tdock.proto)
tdock_module(wire USES dock LINKS tdock_messages absl::btree absl::flat_hash_map absl::flat_hash_set TEST_USES dock)
# gRPC is not instrumented for ThreadSanitizer, which reports hundreds of races in it that are not there.
tdock_proto(tdock_health ${PROJECT_SOURCE_DIR}/proto/health.proto)
tdock_module(rpc NO_TSAN USES tensor PRIVATE_LINKS tdock_health gRPC::grpc++ absl::synchronization OpenSSL::SSL OpenSSL::Crypto
             nghttp2)
tdock_module(remote NO_TSAN USES wire rpc TEST_USES dock)
tdock_module(console USES dock config LINKS CLI11::CLI11 nlohmann_json::nlohmann_json PkgConfig::httplib
             PRIVATE_LINKS PkgConfig::prometheus)
tdock_embed(tdock_console ${PROJECT_SOURCE_DIR}/src/console/page.html console/page_template.h console::kPageTemplate)
tdock_module(serve NO_TSAN USES console remote)
tdock_python_module(python USES remote mindspeed)
tdock_module(text USES config LINKS absl::flat_hash_map nlohmann_json::nlohmann_json
             PRIVATE_LINKS xxhash PkgConfig::pcre2 PkgConfig::sentencepiece PkgConfig::utf8proc
             ALONE sentencepiece_model.cc)  # sentencepiece has an absl::string_view of its own
tdock_module(data USES text PRIVATE_LINKS simdjson ${CMAKE_DL_LIBS})
tdock_plugin(parquet USES data LINKS PyArrow::PyArrow)
if(TARGET tdock_parquet)
  target_compile_definitions(tdock_data PRIVATE TDOCK_PARQUET="$<TARGET_FILE_NAME:tdock_parquet>")
  if(TARGET data_test)
    add_dependencies(data_test tdock_parquet)
  endif()
endif()
tdock_module(reward USES text)
tdock_module(tensor_torch TORCH USES tensor)
tdock_module(model_files USES tensor LINKS nlohmann_json::nlohmann_json)
tdock_module(model TORCH USES tensor_torch model_files LINKS nlohmann_json::nlohmann_json)
tdock_module(generate TORCH USES model text)
tdock_module(algo TORCH)
tdock_module(train TORCH USES dock reward generate algo LINKS nlohmann_json::nlohmann_json LONG_TESTS Learning.*)
if(TARGET tdock_train)
  tdock_embed(tdock_train ${PROJECT_SOURCE_DIR}/src/train/report.html train/report_template.h train::kReportTemplate)
endif()
tdock_module(bench USES dock LINKS nlohmann_json::nlohmann_json)
target_compile_definitions(tdock_bench PRIVATE TDOCK_BUILD_TYPE="${CMAKE_BUILD_TYPE}")
tdock_module(bench_service NO_TSAN USES bench remote)
tdock_module(bench_text USES bench data LINKS simdjson)
tdock_module(bench_torch TORCH USES bench train)
tdock_module(command USES base LINKS CLI11::CLI11)
tdock_module(bench_tool TORCH USES bench_torch bench_service bench_text command)
tdock_module(cli TORCH USES train command)
