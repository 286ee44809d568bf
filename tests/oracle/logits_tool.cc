// For the oracle tests: what a model gives to rows of tokens.
//
// usage: tdock_logits MODEL MODE,… [options] < rows.json > outputs
//
// Standard input is {"rows": [[token, …], …], "prefill": [length, …], "new_tokens": N}. Standard output is float32, the
// logits of each token, or its value, row by row, for one mode after the other. `full` and `left` run all rows in one
// pass padded on the right or the left, `packed` in one without padding. `cached` reads the first `prefill` tokens of
// each row in one pass over a cache, and then all rows together one token at a time. `greedy` prints the N most likely
// tokens behind each row, as JSON, and `scores` what an engine finds out about the rows as prompts. --save writes the
// model, its adapters merged, --save-adapters writes those, and
// --save-gradients writes the gradients of the loss of the next tokens instead of the outputs.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <exception>
#include <iostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/env.h"
#include "core/base/status.h"
#include "engine/cache/paged_cache.h"
#include "engine/engine.h"
#include "model/decoder/adapter_files.h"
#include "model/decoder/checkpoint.h"
#include "nlohmann/json.hpp"

namespace tdock {
namespace {

using Rows = std::vector<std::vector<int64_t>>;

int64_t Length(const std::vector<int64_t>& row) { return static_cast<int64_t>(row.size()); }

// Rows of the same width, and which of their places are tokens.
struct Padded {
  at::Tensor tokens;   // int64 [B, T]
  at::Tensor present;  // bool [B, T]
};

Padded PaddedTo(bool left, const Rows& rows) {
  int64_t width = 0;
  for (const std::vector<int64_t>& row : rows) width = std::max(width, Length(row));
  const auto count = static_cast<int64_t>(rows.size());
  Padded padded{at::zeros({count, width}, at::kLong), at::zeros({count, width}, at::kBool)};
  for (int64_t b = 0; b < count; ++b) {
    const std::vector<int64_t>& row = rows[static_cast<size_t>(b)];
    const int64_t begin = left ? width - Length(row) : 0;
    padded.tokens[b].narrow(0, begin, Length(row)).copy_(at::tensor(row, at::kLong));
    padded.present[b].narrow(0, begin, Length(row)).fill_(true);
  }
  return padded;
}

// What the head gives for each token of each row: [length, V] or [length, 1].
std::vector<at::Tensor> Outputs(const model::Decoder& decoder, const Rows& rows, const std::string& mode) {
  const auto outputs_of = [&](const model::TokenBatch& batch) {
    const at::Tensor hidden = decoder.Hidden(batch);
    return decoder.config().head == model::Head::kValue ? decoder.Values(hidden).unsqueeze(-1)
                                                        : decoder.Logits(hidden).to(at::kFloat);
  };
  if (mode == "packed") {
    std::vector<int64_t> lengths;
    for (const std::vector<int64_t>& row : rows) lengths.push_back(Length(row));
    return outputs_of(model::PackedBatch(Column::FromRows(rows), at::kCPU).value())[0].split_with_sizes(lengths);
  }
  const Padded padded = PaddedTo(mode == "left", rows);
  const at::Tensor outputs = outputs_of(model::PaddedBatch(padded.tokens, padded.present));
  std::vector<at::Tensor> result;
  for (int64_t b = 0; b < outputs.size(0); ++b) {
    result.push_back(outputs[b].index_select(0, padded.present[b].nonzero().squeeze(1)));
  }
  return result;
}

// The gradients of the mean of -log p(next token) over all rows, as a checkpoint whose weights they are.
absl::Status SaveGradients(model::Decoder& decoder, const Rows& rows, const std::string& folder) {
  at::AutoGradMode with_gradients(true);
  decoder.SetTrainable(true);
  std::vector<at::Tensor> losses;
  const std::vector<at::Tensor> outputs = Outputs(decoder, rows, "packed");
  for (size_t b = 0; b < rows.size(); ++b) {
    if (rows[b].size() < 2) continue;
    const at::Tensor targets = at::tensor(std::vector<int64_t>(rows[b].begin() + 1, rows[b].end()), at::kLong);
    losses.push_back(
        at::cross_entropy_loss(outputs[b].narrow(0, 0, targets.size(0)), targets, {}, at::Reduction::None));
  }
  const auto gradients = torch::autograd::grad({at::cat(losses).mean()}, decoder.parameters());
  const model::Decoder saved = decoder.Clone();
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < gradients.size(); ++i) saved.parameters()[i].copy_(gradients[i]);
  return model::SaveCheckpoint(Env::Real(), folder, saved);
}

std::vector<at::Tensor> CachedLogits(const model::Decoder& decoder, const Rows& rows,
                                     const std::vector<int64_t>& prefill) {
  engine::PagedCache cache(decoder.config(), at::kFloat, 1000);
  std::vector<model::CachedPart> next;  // of each row; without tokens at its end
  int64_t longest = 0;
  for (size_t b = 0; b < rows.size(); ++b) {
    next.push_back({cache.Add(), 0, prefill[b]});
    TORCH_CHECK(cache.Reserve(next.back().sequence, Length(rows[b])), "the cache is too small");
    longest = std::max(longest, Length(rows[b]));
  }
  std::vector<std::vector<at::Tensor>> pieces(rows.size());
  for (;;) {
    std::vector<model::CachedPart> parts;
    std::vector<int64_t> tokens, positions;
    for (size_t b = 0; b < rows.size(); ++b) {
      if (next[b].count > 0) parts.push_back(next[b]);
      for (int64_t i = next[b].begin; i < next[b].begin + next[b].count; ++i) {
        tokens.push_back(rows[b][static_cast<size_t>(i)]);
        positions.push_back(i);
      }
    }
    if (parts.empty()) break;
    const auto row = [](const std::vector<int64_t>& values) { return at::tensor(values, at::kLong).unsqueeze(0); };
    const model::TokenBatch batch{.tokens = row(tokens), .positions = row(positions), .rope_length = longest};
    const at::Tensor logits = decoder.Logits(decoder.Hidden(batch, cache.Begin(parts).get())).squeeze(0);
    int64_t begin = 0;
    for (size_t b = 0; b < rows.size(); ++b) {
      pieces[b].push_back(logits.narrow(0, begin, next[b].count));
      begin += next[b].count;
      next[b].begin += next[b].count;
      next[b].count = std::min<int64_t>(1, Length(rows[b]) - next[b].begin);
    }
  }
  std::vector<at::Tensor> result;
  for (const std::vector<at::Tensor>& of_row : pieces) result.push_back(at::cat(of_row));
  return result;
}

// The most likely tokens behind each row, as a list of lists.
absl::Status PrintGreedy(const model::Decoder& decoder, const Rows& rows, int64_t new_tokens) {
  std::vector<engine::Prompt> prompts;
  for (const std::vector<int64_t>& row : rows) prompts.push_back({.tokens = {row.begin(), row.end()}});
  engine::Engine engine(decoder, {.max_rows = 3});
  TDOCK_ASSIGN_OR_RETURN(const std::vector<engine::Completion> completions,
                         engine.Generate(prompts, {.temperature = 0, .max_new_tokens = new_tokens}));
  nlohmann::json answers = nlohmann::json::array();
  for (const engine::Completion& completion : completions) answers.push_back(completion.tokens);
  std::cout << answers << "\n";
  return std::cout.flush() ? absl::OkStatus() : absl::UnavailableError("standard output is closed");
}

// For each row, the log-probabilities and ranks of its tokens but the first, and the 3 most likely ones in their
// places.
absl::Status PrintScores(const model::Decoder& decoder, const Rows& rows) {
  std::vector<engine::Request> requests;
  for (const std::vector<int64_t>& row : rows) {
    engine::Request& request = requests.emplace_back();
    request.prompt.tokens = {row.begin(), row.end()};
    request.prompt_log_probs = 3;
  }
  const auto none = nlohmann::json::array();
  nlohmann::json scores(rows.size(), nlohmann::json{{"log_probs", none}, {"ranks", none}, {"top", none}});
  const auto add = [&](std::span<engine::Answer> ended) -> absl::Status {
    for (const engine::Answer& answer : ended) {
      TDOCK_RETURN_IF_ERROR(answer.status);
      nlohmann::json& of_row = scores[answer.request];
      for (const engine::PromptToken& token : *answer.completion.prompt_log_probs) {
        of_row["log_probs"].push_back(token.log_prob);
        of_row["ranks"].push_back(token.rank);
        nlohmann::json& top = of_row["top"].emplace_back(nlohmann::json::array());
        for (const engine::TokenLogProb& one : token.top) top.push_back({one.token, one.log_prob});
      }
    }
    return absl::OkStatus();
  };
  engine::Engine engine(decoder, {.max_rows = 3, .max_step_tokens = 17});
  TDOCK_RETURN_IF_ERROR(engine.AnswerAll(std::move(requests), add));
  std::cout << scores << "\n";
  return std::cout.flush() ? absl::OkStatus() : absl::UnavailableError("standard output is closed");
}

struct Options {
  std::vector<std::string> modes;
  std::string model, adapters, save, save_adapters, save_gradients, rope_scaling, recomputed = "nothing";
  bool bfloat16 = false;
  bool value_head = false;
  uint64_t max_file_bytes = uint64_t{1} << 40;
};

absl::Status Run(const Options& options) {
  at::NoGradGuard no_grad;
  at::set_num_threads(1);
  Env& env = Env::Real();
  const at::ScalarType dtype = options.bfloat16 ? at::kBFloat16 : at::kFloat;
  TDOCK_ASSIGN_OR_RETURN(
      model::Decoder decoder,
      model::LoadCheckpoint(env, options.model, at::kCPU,
                            {.dtype = dtype, .value_head = options.value_head, .rope_scaling = options.rope_scaling}));
  if (!options.adapters.empty()) {
    TDOCK_RETURN_IF_ERROR(model::LoadAdapters(env, options.adapters, &decoder));
  }
  if (!options.save_adapters.empty()) {
    TDOCK_RETURN_IF_ERROR(model::SaveAdapters(env, options.save_adapters, decoder, options.model));
  }
  if (!options.save.empty()) {
    const auto save = [&](const model::Decoder& saved) {
      return model::SaveCheckpoint(env, options.save, saved,
                                   {.max_file_bytes = options.max_file_bytes, .tokenizer_from = options.model});
    };
    TDOCK_RETURN_IF_ERROR(decoder.lora() ? save(decoder.Merged()) : save(decoder));
  }
  const auto input = nlohmann::json::parse(std::cin);
  const auto rows = input.at("rows").get<Rows>();
  if (!options.save_gradients.empty()) {
    if (options.recomputed == "layers") decoder.SetRecomputed(model::Recomputed::kLayers);
    return SaveGradients(decoder, rows, options.save_gradients);
  }
  for (const std::string& mode : options.modes) {
    if (mode == "greedy") {
      TDOCK_RETURN_IF_ERROR(PrintGreedy(decoder, rows, input.at("new_tokens").get<int64_t>()));
      continue;
    }
    if (mode == "scores") {
      TDOCK_RETURN_IF_ERROR(PrintScores(decoder, rows));
      continue;
    }
    const std::vector<at::Tensor> outputs =
        mode == "cached" ? CachedLogits(decoder, rows, input.at("prefill").get<std::vector<int64_t>>())
                         : Outputs(decoder, rows, mode);
    for (const at::Tensor& row : outputs) {
      const at::Tensor dense = row.contiguous();
      std::cout.write(reinterpret_cast<const char*>(dense.const_data_ptr()),
                      static_cast<std::streamsize>(dense.nbytes()));
    }
  }
  return std::cout.flush() ? absl::OkStatus() : absl::UnavailableError("standard output is closed");
}

}  // namespace
}  // namespace tdock

int main(int argc, char** argv) {
  tdock::Options options;
  CLI::App app("What a model gives to rows of tokens.");
  app.add_option("model", options.model)->required();
  app.add_option("modes", options.modes)
      ->required()
      ->delimiter(',')
      ->check(CLI::IsMember({"full", "left", "packed", "cached", "greedy", "scores"}));
  app.add_option("--adapters", options.adapters);
  app.add_option("--save", options.save);
  app.add_option("--save-adapters", options.save_adapters);
  app.add_option("--save-gradients", options.save_gradients);
  app.add_option("--max-file-bytes", options.max_file_bytes);
  app.add_option("--rope-scaling", options.rope_scaling);
  app.add_option("--recomputed", options.recomputed)->check(CLI::IsMember({"nothing", "layers"}));
  app.add_flag("--bfloat16", options.bfloat16);
  app.add_flag("--value-head", options.value_head);
  CLI11_PARSE(app, argc, argv);
  try {
    const absl::Status status = tdock::Run(options);
    if (!status.ok()) std::cerr << status.message() << "\n";
    return status.ok() ? 0 : 2;
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
