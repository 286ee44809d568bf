include(EmbedFile)

# The order of modules. Each may include the headers of those that it uses, of those that they use, and of no other.

tdock_module(base LINKS absl::status absl::statusor absl::strings absl::str_format absl::time absl::flat_hash_set Threads::Threads
             nlohmann_json::nlohmann_json)
tdock_module(config USES base LINKS absl::flat_hash_map absl::flat_hash_set PRIVATE_LINKS yaml-cpp)
tdock_module(tensor USES base LINKS absl::inlined_vector absl::flat_hash_map)
tdock_module(arena USES tensor)
tdock_module(dock USES arena LINKS absl::flat_hash_map absl::flat_hash_set absl::btree)
tdock_module(mindspeed USES dock LINKS absl::flat_hash_map)
tdock_module(console USES dock config LINKS CLI11::CLI11 nlohmann_json::nlohmann_json PkgConfig::httplib
             PRIVATE_LINKS PkgConfig::prometheus)
tdock_embed(tdock_console ${PROJECT_SOURCE_DIR}/src/console/page.html console/page_template.h console::kPageTemplate)
tdock_module(text USES config LINKS absl::flat_hash_map nlohmann_json::nlohmann_json)
tdock_module(reward USES text)
tdock_module(tensor_torch TORCH USES tensor)
tdock_module(model TORCH USES tensor_torch LINKS nlohmann_json::nlohmann_json)
tdock_module(generate TORCH USES model text)
tdock_module(algo TORCH)
tdock_module(train TORCH USES dock reward generate algo LINKS nlohmann_json::nlohmann_json LONG_TESTS Learning.*)
if(TARGET tdock_train)
  tdock_embed(tdock_train ${PROJECT_SOURCE_DIR}/src/train/report.html train/report_template.h train::kReportTemplate)
endif()
tdock_module(bench USES dock LINKS nlohmann_json::nlohmann_json)
target_compile_definitions(tdock_bench PRIVATE TDOCK_BUILD_TYPE="${CMAKE_BUILD_TYPE}")
tdock_module(bench_torch TORCH USES bench train)
tdock_module(cli TORCH USES train bench_torch LINKS CLI11::CLI11)
