#include "trainer/loop/rollout_servers_section.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"
#include "kernels/limits.h"
#include "model/tensor_torch/convert.h"

namespace tdock::trainer {
namespace {

void BindServerWeights(config::Spec& spec, RolloutServersSection& s) {
  spec.Choice("rollout.server_weights", &s.weights,
              {{"stream", ServerWeights::kStream}, {"folder", ServerWeights::kFolder}, {"none", ServerWeights::kNone}},
              "How servers get the weights of each step. stream: straight from memory, which `tdock serve` takes; "
              "folder: as a Hugging Face folder, which they are told to read, vLLM and SGLang in their own ways; none: "
              "not at all, they answer with what they have.");
  spec.String("rollout.server_weights_path", &s.weights_path,
              "What of a server is told of a folder of weights, with a JSON object of `model_path` and "
              "`weight_version`; at the default, vLLM and SGLang are told in their own ways.")
      .NotEmpty();
  spec.String("rollout.server_weights_folder", &s.weights_folder,
              "Where the folders of weights are written, which servers must see under the same name; empty: "
              "`server_weights` in the run's folder.");
  spec.Unused(
      {"rollout.server_weights_path", "rollout.server_weights_folder"},
      [&s] { return s.weights != ServerWeights::kFolder; }, "weights are not sent as a folder");
  spec.Check({"rollout.server_weights_path"}, [&s]() -> std::vector<std::string> {
    if (absl::StartsWith(s.weights_path, "/")) return {};
    return {"it is the path of a URL, and begins with /"};
  });
}

}  // namespace

void BindRolloutServers(config::Spec& spec, RolloutServersSection& s) {
  spec.Strings("rollout.servers", &s.urls,
               "Servers that answer the prompts, such as [http://a:8000, http://b:8000]: `tdock serve`, vLLM or others "
               "that speak OpenAI's completions with token ids and log-probabilities. Empty: this process answers.");
  spec.String("rollout.servers_file", &s.file,
              "File with more of them, one URL in a line, that is read again whenever it changes, so that servers can "
              "come and go while the run goes on.");
  spec.Check({"rollout.servers"}, [&s]() -> std::vector<std::string> {
    std::vector<std::string> wrong;
    for (const std::string& url : s.urls) {
      if (absl::StartsWith(url, "http://") || absl::StartsWith(url, "https://")) continue;
      wrong.push_back(absl::StrCat("'", EscapeForMessage(url), "' is no URL of a server: http://HOST:PORT is one"));
    }
    return wrong;
  });
  BindServerWeights(spec, s);
  spec.String("rollout.server_model", &s.model,
              "Name of the model that servers are asked for; empty: the one they have.");
  spec.String("rollout.server_key_env", &s.key_env,
              "Environment variable with the key that servers ask for; empty: none is sent.");
  spec.String("rollout.server_ca_file", &s.ca_file,
              "Certificates (PEM) that are trusted for https; empty: those of the system.");
  spec.Int("rollout.server_connections", &s.connections, "Requests that are in progress at a server at the same time.")
      .AtLeast(1)
      .AtMost(65536);
  spec.Float("rollout.server_timeout", &s.timeout,
             "Seconds that there may be no server that answers before the run ends with an error.")
      .MoreThan(0)
      .AtMost(1e6);
  spec.Float("rollout.server_answer_timeout", &s.answer_timeout,
             "Seconds that a server may take for one request before another is asked.")
      .MoreThan(0)
      .AtMost(1e6);
  spec.Int("rollout.server_retries", &s.retries,
           "How often a request is asked again after servers that could be reached have failed to answer it.")
      .AtLeast(0)
      .AtMost(1000);
  spec.Unused(
      {"rollout.server_weights", "rollout.server_model", "rollout.server_key_env", "rollout.server_ca_file",
       "rollout.server_connections", "rollout.server_timeout", "rollout.server_answer_timeout",
       "rollout.server_retries"},
      [&s] { return !s.used(); }, "this process answers (rollout.servers, rollout.servers_file)");
}

ServerEngineOptions ServerOptions(const RolloutServersSection& section, const std::string& run_dir,
                                  const std::string& model_path, const model::Decoder& policy,
                                  const std::vector<int32_t>& end_tokens) {
  return {.urls = section.urls,
          .urls_file = section.file,
          .wanted = {.model = section.model,
                     .dtype = std::string(Name(ToDType(policy.compute_type()).value())),
                     .kernels = policy.batch_invariant() ? kernels::Instructions() : ""},
          .key_env = section.key_env,
          .ca_file = section.ca_file,
          .weights = section.weights,
          .weights_folder =
              section.weights_folder.empty() ? absl::StrCat(run_dir, "/server_weights") : section.weights_folder,
          .weights_path = section.weights_path,
          .tokenizer_from = model_path,
          .connections = section.connections,
          .timeout = absl::Seconds(section.timeout),
          .answer_timeout = absl::Seconds(section.answer_timeout),
          .tries = section.retries + 1,
          .end_tokens = end_tokens,
          .vocab_size = policy.used_tokens()};
}

}  // namespace tdock::trainer
