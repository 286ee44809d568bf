#include <ATen/Parallel.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/commands.h"
#include "cli/executables.h"
#include "cli/inference/other_weights.h"
#include "cli/interrupt.h"
#include "cli/line_log.h"
#include "cli/model_options.h"
#include "cli/prompt_options.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/base/workers.h"
#include "engine/model_folder.h"
#include "inference/model_server.h"
#include "kernels/limits.h"
#include "kernels/parallel.h"
#include "model/decoder/device.h"
#include "model/tensor_torch/convert.h"
#include "text/replies/reply_forms.h"
#include "trainer/stages/guard.h"

namespace tdock::cli {
namespace {

constexpr char kLimits[] = "Limits";
constexpr absl::Duration kLookForSignal = absl::Milliseconds(50);
constexpr uint64_t kMostKeyBytes = 1 << 20;
constexpr char kAutomatic[] = "auto";

struct ServeArguments {
  ModelArguments model;
  PromptArguments prompts;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::vector<std::string> names;
  std::string preferred;
  std::string reply_form = kAutomatic;
  int replicas = 1;
  int tensor_parallel = 1;
  std::string api_key_file;
  bool insecure = false;
  std::string access_log;
  int64_t max_queue = 1024;
  int64_t max_connections = 4096;
  int64_t max_body_mib = 16;
  double request_timeout = 30, prepare_timeout = 30, write_timeout = 30, answer_timeout = 0, drain = 30;
};

// A thousand clients need a thousand descriptors, and shells give no more.
void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

absl::StatusOr<std::vector<std::string>> ReadKeys(const std::string& path) {
  std::vector<std::string> keys;
  if (path.empty()) return keys;
  TDOCK_ASSIGN_OR_RETURN(const std::string text, ReadFileUpTo(Env::Real(), path, kMostKeyBytes));
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty()) keys.emplace_back(line);
  }
  if (keys.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has no keys; each line that is not empty is one"));
  }
  return keys;
}

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.compare(0, 4, "127.") == 0;
}

// What is read before anything is served.
struct ServeInputs {
  std::vector<std::string> keys;
  inference::SamplingAsk preferred;
  std::optional<text::ReplyForm> reply_form;  // absent: that of the template
  engine::ModelFolder model;
};

// Once for all engines, which share what a decoder has.
void PackOnce(const ServeArguments& arguments, engine::ModelFolder& model) {
  if (!model.decoder.batch_invariant()) return;
  Workers workers(model::WorkerThreads(arguments.model.threads, model.decoder.device()),
                  [] { at::init_num_threads(); });
  kernels::WithTeam(workers, [&] {
    model.decoder.PackWeights(arguments.model.int8);
    if (model.draft) model.draft->PackWeights(/*int8=*/true);
  });
}

absl::StatusOr<ServeInputs> Gather(const ServeArguments& arguments) {
  if (arguments.tensor_parallel != 1) {
    return absl::UnimplementedError(
        absl::StrCat("--tensor-parallel-size ", arguments.tensor_parallel,
                     " is not supported: a model is on one device; --replicas serves it more than once"));
  }
  TDOCK_ASSIGN_OR_RETURN(std::vector<std::string> keys, ReadKeys(arguments.api_key_file));
  if (!IsLoopback(arguments.host) && keys.empty() && !arguments.insecure) {
    return absl::InvalidArgumentError(absl::StrCat("--host ", arguments.host,
                                                   " lets other machines ask, and change the weights: give ",
                                                   "--api-key-file, or --insecure where the network keeps others out"));
  }
  auto preferred = inference::ReadSampling(arguments.preferred.empty() ? "{}" : arguments.preferred);
  if (const auto* problem = std::get_if<inference::Problem>(&preferred)) {
    return absl::InvalidArgumentError(absl::StrCat("--preferred-sampling-params: ", problem->message));
  }
  std::optional<text::ReplyForm> reply_form;
  if (arguments.reply_form != kAutomatic) {
    const auto named = text::ReplyFormNamed(arguments.reply_form);
    if (!named.ok()) return Annotate(named.status(), "--reply-form");
    reply_form = *named;
  }
  TDOCK_ASSIGN_OR_RETURN(engine::ModelFolder model, LoadModel(arguments.model));
  PackOnce(arguments, model);
  return ServeInputs{std::move(keys), std::get<inference::SamplingAsk>(std::move(preferred)), reply_form,
                     std::move(model)};
}

std::vector<std::unique_ptr<ServedModel>> MakeReplicas(const ServeArguments& arguments,
                                                       const engine::ModelFolder& model) {
  ModelArguments each = arguments.model;
  each.threads = std::max(model::WorkerThreads(each.threads, model.decoder.device()) / arguments.replicas, 1);
  std::vector<std::unique_ptr<ServedModel>> replicas;
  for (int i = 0; i < arguments.replicas; ++i) replicas.push_back(std::make_unique<ServedModel>(each, model));
  return replicas;
}

// So that only the engines have the weights, which are then freed when all serve others.
void HandOver(model::Decoder decoder, const std::vector<std::unique_ptr<ServedModel>>& replicas) {
  const auto first = std::make_shared<const model::Decoder>(std::move(decoder));
  for (const auto& replica : replicas) replica->engine().Serve(first, 0);
}

inference::ServedModel Describe(const ServeArguments& arguments, const ServeInputs& inputs,
                                const std::vector<std::unique_ptr<ServedModel>>& replicas) {
  const engine::ModelFolder& model = inputs.model;
  inference::ServedModel served{.names = arguments.names,
                                .tokenizer = model.tokenizer.get(),
                                .chat_template = TemplateOf(arguments.prompts, arguments.model.model),
                                .system = arguments.prompts.system,
                                .end_tokens = model.end_tokens,
                                .context_length = model.decoder.config().context_length(),
                                .vocab_size = model.decoder.used_tokens(),
                                .preferred = inputs.preferred};
  if (served.names.empty()) served.names = {arguments.model.model};
  served.shows_today =
      served.chat_template.ok() && served.chat_template->shows_time() && arguments.prompts.data.template_date.empty();
  if (served.chat_template.ok()) {
    served.reply_form = inputs.reply_form.value_or(text::ReplyFormOf(*served.chat_template));
    served.has_reasoning = text::HasReasoning(served.reply_form, *served.chat_template);
  }
  for (const auto& replica : replicas) served.engines.push_back(&replica->engine());
  served.dtype = std::string(Name(ToDType(model.decoder.compute_type()).value()));
  if (model.decoder.HasKernels()) served.kernels = kernels::Instructions();
  served.int8_weights = arguments.model.int8;
  const auto others = std::make_shared<const OtherWeights>(model);
  served.load = [others](const std::string& folder) { return others->Load(folder); };
  served.blank = [others] { return others->Blank(); };
  return served;
}

struct AccessLog {
  std::ofstream file = {};
  std::unique_ptr<LineLog> lines = {};
  // Says something of the server itself on standard error.
  std::unique_ptr<LineLog> trouble = std::make_unique<LineLog>(std::cerr, [](const std::string&) {});
};

absl::StatusOr<inference::ModelServerOptions> OptionsOf(const ServeArguments& arguments, const ServeInputs& inputs,
                                                        AccessLog& log) {
  const int64_t max_open_answers = arguments.model.max_rows * arguments.replicas + arguments.max_queue;
  inference::ModelServerOptions options{
      .host = arguments.host,
      .port = arguments.port,
      .limits = {.max_connections = static_cast<size_t>(arguments.max_connections),
                 .max_waiting_requests = static_cast<size_t>(std::max<int64_t>(1024, max_open_answers)),
                 .max_body_bytes = static_cast<uint64_t>(arguments.max_body_mib) << 20,
                 .max_bodies_bytes = std::max<uint64_t>(static_cast<uint64_t>(arguments.max_body_mib) << 22, 256 << 20),
                 .request_timeout = absl::Seconds(arguments.request_timeout),
                 .write_timeout = absl::Seconds(arguments.write_timeout)},
      .api_keys = inputs.keys,
      .max_open_answers = max_open_answers,
      .prepare_timeout = absl::Seconds(arguments.prepare_timeout),
      .on_trouble = [lines = log.trouble.get()](const std::string& what) { lines->Add(what); }};
  if (arguments.answer_timeout > 0) options.answer_timeout = absl::Seconds(arguments.answer_timeout);
  if (arguments.access_log.empty()) return options;
  const bool to_file = arguments.access_log != "-";
  if (to_file) log.file.open(arguments.access_log, std::ios::app);
  if (!log.file)
    return absl::UnavailableError(
        absl::StrCat("cannot write to --access-log ", EscapeUnprintable(arguments.access_log)));
  std::ostream& stream = to_file ? static_cast<std::ostream&>(log.file) : std::cerr;
  log.lines = std::make_unique<LineLog>(stream, [name = arguments.access_log](const std::string& what) {
    std::cerr << EscapeForTerminal(absl::StrCat("--access-log ", name, " ", what, "\n"));
  });
  options.access_log = [lines = log.lines.get()](absl::string_view line) { lines->Add(line); };
  return options;
}

absl::Status Serve(const ServeArguments& arguments) {
  absl::StatusOr<ServeInputs> inputs = trainer::Guarded([&] { return Gather(arguments); });
  TDOCK_RETURN_IF_ERROR(Refused(inputs.status()));
  RaiseDescriptorLimit();
  const std::atomic<bool>& asked_to_end = InterruptFlag();
  AccessLog log;
  absl::StatusOr<inference::ModelServerOptions> options = OptionsOf(arguments, *inputs, log);
  TDOCK_RETURN_IF_ERROR(Refused(options.status()));
  const auto replicas = MakeReplicas(arguments, inputs->model);
  inference::ServedModel model = Describe(arguments, *inputs, replicas);
  HandOver(std::move(inputs->model.decoder), replicas);
  const std::string name = model.names.front(),
                    computes_in = absl::StrCat(model.dtype, model.int8_weights ? " with products in int8" : "");
  const auto server = inference::ModelServer::Start(std::move(model), *std::move(options));
  TDOCK_RETURN_IF_ERROR(Refused(server.status()));
  const std::string host =
      absl::StrContains(arguments.host, ':') ? absl::StrCat("[", arguments.host, "]") : arguments.host;
  std::cerr << absl::StrCat("Serving ", EscapeUnprintable(name), " in ", computes_in, " at http://",
                            EscapeUnprintable(host), ":", (*server)->port(), "\n")
            << std::flush;
  while (!asked_to_end) std::this_thread::sleep_for(absl::ToChronoMilliseconds(kLookForSignal));
  std::cerr << "Ending: requests in progress have " << arguments.drain << " s; another signal ends them\n";
  if (!(*server)->Drain(absl::Seconds(arguments.drain))) std::cerr << "Some requests did not end in time\n";
  return absl::OkStatus();
}

void AddLimits(CLI::App& command, ServeArguments& arguments) {
  const auto add = [&](const char* name, auto& value, const char* what) {
    return command.add_option(name, value, what)->group(kLimits)->capture_default_str();
  };
  const CLI::Range seconds(0.001, 1e6);
  add("--max-queue", arguments.max_queue, "Answers that wait, beyond --max-rows; more are refused with the status 429")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  add("--max-connections", arguments.max_connections, "Connections at the same time")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  add("--max-body-mib", arguments.max_body_mib, "The body of a request, in MiB")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 12));
  add("--request-timeout", arguments.request_timeout, "Seconds for a request to arrive")->check(seconds);
  add("--prepare-timeout", arguments.prepare_timeout,
      "Seconds for the prompts of a request to become tokens; beyond, it is refused with the status 400")
      ->check(seconds);
  add("--write-timeout", arguments.write_timeout, "Seconds without a byte that the client reads")->check(seconds);
  add("--answer-timeout", arguments.answer_timeout, "Seconds after which an answer ends as it is; 0: never")
      ->check(CLI::Range(0.0, 1e9));
  add("--drain", arguments.drain, "Seconds that requests in progress have when the server is to end")
      ->check(CLI::Range(0.0, 1e6));
}

Command AddServe(CLI::App& app) {
  auto arguments = std::make_shared<ServeArguments>();
  arguments->model.max_rows = 256;
  CLI::App* command = AddSubcommand(app, "serve");
  AddModelOptions(*command, "--model,--model-path", arguments->model);
  AddBatchOptions(*command, arguments->model);
  command->add_option("--host", arguments->host, "Address to listen on; 0.0.0.0: all of this machine's")
      ->capture_default_str();
  command->add_option("--port", arguments->port, "Port; 0: a free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command->add_option("--served-model-name", arguments->names,
                      "Names that clients ask for; the first is in answers (the folder of the model)");
  command->add_option("--preferred-sampling-params", arguments->preferred,
                      "Sampling parameters of requests that do not say, as a JSON object: "
                      "'{\"temperature\": 0, \"top_p\": 1}'");
  command
      ->add_option("--reply-form", arguments->reply_form,
                   absl::StrCat("Form in which the model calls tools and reasons; auto: that of its chat template, or "
                                "one of ",
                                absl::StrJoin(text::ReplyFormNames(), ", ")))
      ->capture_default_str();
  command
      ->add_option("--replicas", arguments->replicas,
                   "Engines that share the weights and the threads; each has --max-rows and --cache-mib")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--tensor-parallel-size,--tp", arguments->tensor_parallel, "1: a model is on one device")
      ->capture_default_str();
  command->add_option("--api-key-file", arguments->api_key_file,
                      "File with a key on each line, of which clients name one: Authorization: Bearer KEY");
  command->add_flag("--insecure", arguments->insecure, "Serve other machines without keys");
  command->add_option("--access-log", arguments->access_log,
                      "File that gets a line of JSON for each request; -: standard error");
  AddTemplateOptions(*command, arguments->prompts);
  AddLimits(*command, *arguments);
  return [arguments] { return Serve(*arguments); };
}

}  // namespace

int RunTdockServe(int argc, char** argv) { return RunCommands(argc, argv, {{"chat", AddChat}, {"serve", AddServe}}); }

}  // namespace tdock::cli
