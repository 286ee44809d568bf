include(EmbedFile)

# The order of modules. Each may include the headers of those that it uses, of those that they use, and of no other.

# ---- What both products use.
tdock_module(core/base LINKS absl::status absl::statusor absl::strings absl::str_format absl::time absl::flat_hash_set
             Threads::Threads nlohmann_json::nlohmann_json)
# A supervising process (supervisor.cc) gives back its memory, and with it what the dynamic linker would need to find a
# function when it is first called.
target_link_options(tdock_core_base PUBLIC LINKER:-z,now)
tdock_module(core/config NO_TSAN COLD USES core/base LINKS absl::flat_hash_map absl::flat_hash_set PRIVATE_LINKS yaml-cpp)
tdock_module(core/command NO_TSAN COLD USES core/base LINKS CLI11::CLI11)
tdock_module(core/tensor USES core/base LINKS absl::inlined_vector absl::flat_hash_map PRIVATE_LINKS xxhash)
# Asio takes long to compile, and is known to one source.
tdock_module(core/net COLD USES core/tensor LINKS absl::flat_hash_map PRIVATE_LINKS Boost::headers OpenSSL::SSL OpenSSL::Crypto
             ALONE loop.cc)
if(TDOCK_SANITIZE MATCHES "thread")  # which does not know fences; what they order, locks order as well
  target_compile_definitions(tdock_core_net PRIVATE BOOST_ASIO_DISABLE_FENCED_BLOCK)
endif()

# Boost.Beast takes long to compile, and is known to one source.
tdock_module(core/http USES core/base PRIVATE_LINKS Boost::headers ALONE server.cc connection.cc)
if(TDOCK_SANITIZE MATCHES "thread")  # which does not know fences; what they order, locks order as well
  target_compile_definitions(tdock_core_http PRIVATE BOOST_ASIO_DISABLE_FENCED_BLOCK)
endif()

# ---- Runs of several processes.
tdock_module(runtime/launch COLD USES core/base)

# ---- The dock.
tdock_module(dock/table USES core/tensor LINKS absl::flat_hash_map absl::flat_hash_set absl::btree)
tdock_module(dock/store USES dock/table)
tdock_test_suites(dock/testing USES dock/local)
tdock_module(dock/local HOT_TESTS USES dock/store TEST_USES dock/testing LONG_TESTS Linear.*)
tdock_module(dock/compat/mindspeed USES dock/local LINKS absl::flat_hash_map)
tdock_module(dock/service/wire USES dock/local core/net LINKS absl::btree absl::flat_hash_map absl::flat_hash_set
             TEST_USES dock/testing)
tdock_module(dock/service/console COLD USES dock/local core/config core/http LINKS CLI11::CLI11 nlohmann_json::nlohmann_json
             PRIVATE_LINKS PkgConfig::prometheus)
tdock_embed(tdock_dock_service_console ${PROJECT_SOURCE_DIR}/src/dock/service/console/page.html
            dock/service/console/page_template.h console::kPageTemplate)
tdock_module(dock/service/program COLD USES dock/service/console dock/service/wire)
if(TDOCK_TORCH)  # only trainers use them
  tdock_module(dock/shared COLD USES dock/service/wire)
endif()

# ---- Several processes.
tdock_module(runtime/mesh COLD USES core/tensor)
tdock_module(runtime/dispatch COLD USES runtime/mesh)
tdock_module(runtime/control USES runtime/dispatch core/net)

# ---- The Python package.
tdock_python_module(python USES dock/service/wire dock/compat/mindspeed runtime/control)
tdock_module(runtime/rendezvous TORCH COLD USES runtime/launch)
tdock_module(runtime/collective COLD USES core/tensor)
tdock_module(runtime/collective/tensor TORCH COLD USES runtime/collective)
tdock_test_suites(runtime/collective/gloo/testing TORCH USES runtime/collective/gloo)
tdock_module(runtime/collective/gloo TORCH COLD USES runtime/collective/tensor runtime/rendezvous
             TEST_USES runtime/collective/gloo/testing)
tdock_module(runtime/collective/nccl TORCH COLD USES runtime/collective/gloo)
tdock_plugin(runtime/collective/nccl/plugin TORCH USES runtime/collective/nccl LINKS LibTorch::NCCL)
if(TARGET tdock_runtime_collective_nccl_plugin AND TARGET runtime_collective_nccl_test)
  add_dependencies(runtime_collective_nccl_test tdock_runtime_collective_nccl_plugin)
endif()
tdock_module(runtime/replica COLD USES runtime/collective dock/local)

# ---- Text and data.
tdock_module(text/jinja COLD USES core/base LINKS absl::flat_hash_map nlohmann_json::nlohmann_json
             PRIVATE_LINKS PkgConfig::utf8proc)
tdock_module(text NO_TSAN USES core/config text/jinja LINKS absl::flat_hash_map nlohmann_json::nlohmann_json
             PRIVATE_LINKS xxhash PkgConfig::pcre2 PkgConfig::sentencepiece PkgConfig::utf8proc
             ALONE sentencepiece_model.cc)  # sentencepiece has an absl::string_view of its own
tdock_module(text/replies NO_TSAN COLD USES text LINKS nlohmann_json::nlohmann_json)
tdock_module(data COLD USES text PRIVATE_LINKS simdjson ${CMAKE_DL_LIBS})
tdock_plugin(data/parquet USES data LINKS PyArrow::PyArrow)
if(TARGET tdock_data_parquet AND TARGET data_test)
  add_dependencies(data_test tdock_data_parquet)
endif()

# ---- Models, generation and training.
tdock_module(model/files NO_TSAN COLD USES core/tensor LINKS nlohmann_json::nlohmann_json)
tdock_module(kernels TORCH USES core/base)
if(TARGET tdock_kernels)  # vectors are passed only between functions that are compiled for the same instructions
  target_compile_options(tdock_kernels PRIVATE -Wno-psabi)
  # The loops of each instruction set take long to compile.
  foreach(instructions avx512 avx512_bf16 avx2 baseline)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kernels/loops_${instructions}.cc PROPERTIES
                                SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
endif()
tdock_module(model/tensor_torch TORCH COLD USES core/tensor)
tdock_module(model/decoder TORCH COLD USES model/tensor_torch model/files kernels LINKS nlohmann_json::nlohmann_json)
tdock_module(engine/sampling TORCH COLD USES core/base kernels LINKS absl::flat_hash_map)
tdock_module(engine/cache TORCH COLD USES model/decoder kernels LINKS absl::flat_hash_map)
tdock_module(engine TORCH COLD USES engine/sampling engine/cache text LINKS absl::flat_hash_map)
tdock_module(inference/grammar USES text LINKS absl::flat_hash_map)
tdock_module(inference/protocol NO_TSAN USES inference/grammar core/tensor LINKS nlohmann_json::nlohmann_json)
tdock_module(inference TORCH COLD USES text/replies inference/protocol inference/grammar core/http engine LINKS nlohmann_json::nlohmann_json absl::flat_hash_map
             PRIVATE_LINKS PkgConfig::prometheus)
if(TARGET tdock_inference)
  tdock_embed(tdock_inference ${PROJECT_SOURCE_DIR}/src/inference/chat_page.html inference/chat_page.h inference::kChatPage)
endif()
tdock_module(trainer/reward COLD USES text)
tdock_module(trainer/reward/external COLD USES trainer/reward LINKS absl::flat_hash_map nlohmann_json::nlohmann_json
             PkgConfig::httplib OpenSSL::SSL OpenSSL::Crypto PRIVATE_LINKS PkgConfig::seccomp)
tdock_module(inference/client COLD USES trainer/reward/external LINKS nlohmann_json::nlohmann_json)
tdock_embed(tdock_trainer_reward_external ${PROJECT_SOURCE_DIR}/src/trainer/reward/external/code_driver.py
            trainer/reward/external/code_driver.h reward::kCodeDriver)
tdock_embed_program(tdock_trainer_reward_external rewards
                    trainer/reward/external/rewards_module.h reward::kRewardsModule _program)
tdock_module(trainer/executor COLD USES dock/local LINKS nlohmann_json::nlohmann_json)
tdock_module(trainer/environment COLD USES text/replies trainer/reward/external LINKS absl::flat_hash_map nlohmann_json::nlohmann_json)
tdock_embed_program(tdock_trainer_environment environments
                    trainer/environment/environments_module.h environment::kEnvironmentsModule
                    _program _tool_schemas _episodes _instances _agent_loops _clients)
tdock_module(inference/episodes TORCH COLD USES inference trainer/environment LINKS absl::flat_hash_map)
tdock_plugin(inference/episodes/plugin TORCH USES inference/episodes)
tdock_module(trainer/algo TORCH COLD)
tdock_module(trainer/run_log NO_TSAN COLD USES core/config LINKS nlohmann_json::nlohmann_json)
if(TARGET tdock_trainer_run_log)
  foreach(text report.html=kReportTemplate comparison.html=kComparisonTemplate page_style.css=kPageStyle
               charts.js=kChartsScript timeline.js=kTimelineScript run_view.js=kRunViewScript live.html=kLiveTemplate
               live.js=kLiveScript overview.js=kOverviewScript)
    string(REPLACE "=" ";" text ${text})
    list(POP_FRONT text file)
    tdock_embed(tdock_trainer_run_log ${PROJECT_SOURCE_DIR}/src/trainer/run_log/${file}
                trainer/run_log/report_template.h trainer::${text})
  endforeach()
endif()
tdock_module(trainer/run_page COLD USES trainer/run_log trainer/executor core/http PRIVATE_LINKS simdjson ${CMAKE_DL_LIBS})
tdock_module(trainer/checkpoint/parts NO_TSAN COLD USES core/base LINKS nlohmann_json::nlohmann_json)
tdock_module(trainer/checkpoint TORCH COLD USES model/decoder trainer/checkpoint/parts)
tdock_module(trainer/merge/listing COLD USES model/files)
tdock_module(trainer/merge TORCH COLD USES trainer/checkpoint trainer/merge/listing LINKS nlohmann_json::nlohmann_json)
if(TARGET tdock_trainer_merge)
  tdock_embed(tdock_trainer_merge ${PROJECT_SOURCE_DIR}/src/trainer/merge/listing/list_pickled.py
              trainer/merge/list_pickled.h trainer::kListPickled)
endif()
tdock_module(trainer/stages TORCH COLD USES runtime/collective/tensor dock/local data trainer/reward trainer/environment engine trainer/algo trainer/checkpoint
             TEST_USES runtime/collective/gloo/testing)
tdock_module(trainer/rollout_servers/wire NO_TSAN COLD USES core/base LINKS nlohmann_json::nlohmann_json)
tdock_test_suites(trainer/rollout_servers/testing TORCH USES core/http trainer/rollout_servers)
tdock_module(trainer/rollout_servers TORCH COLD USES trainer/rollout_servers/wire trainer/stages trainer/reward/external
             LINKS nlohmann_json::nlohmann_json TEST_USES trainer/rollout_servers/testing)
tdock_module(trainer/loop TORCH COLD USES trainer/stages trainer/rollout_servers trainer/executor trainer/reward/external trainer/run_log data LINKS nlohmann_json::nlohmann_json)
tdock_module(trainer/distributed TORCH COLD USES trainer/loop runtime/mesh runtime/control runtime/rendezvous
             runtime/replica runtime/collective/nccl dock/shared)
tdock_module(trainer/recipes TORCH COLD USES trainer/loop LONG_TESTS Learning.*)
tdock_module(trainer/preflight TORCH COLD USES trainer/recipes)

# ---- Benchmarks, and the command.
tdock_module(bench/harness COLD USES core/base LINKS nlohmann_json::nlohmann_json)
target_compile_definitions(tdock_bench_harness PRIVATE TDOCK_BUILD_TYPE="${CMAKE_BUILD_TYPE}")
tdock_module(bench/dock USES bench/harness dock/local)
tdock_module(bench/service USES bench/dock dock/service/wire)
tdock_module(bench/text USES bench/harness data LINKS simdjson)
tdock_module(bench/torch TORCH COLD USES bench/harness trainer/recipes kernels)
tdock_module(bench/inference TORCH COLD USES bench/torch inference LINKS nlohmann_json::nlohmann_json)
tdock_module(bench/runtime TORCH COLD USES bench/service trainer/distributed)
tdock_module(bench/tool TORCH COLD USES bench/dock bench/torch bench/inference bench/service bench/text bench/runtime core/command)
tdock_module(cli TORCH COLD USES trainer/preflight runtime/launch core/command)
tdock_module(cli/inference TORCH COLD USES cli inference inference/client)
tdock_module(cli/runs TORCH COLD USES cli trainer/merge trainer/run_page)
tdock_module(cli/ranks TORCH COLD USES cli trainer/distributed trainer/run_page)
