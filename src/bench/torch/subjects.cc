#include "bench/torch/subjects.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "text/char_tokenizer.h"

namespace tdock::bench {
namespace {

constexpr uint64_t kSeed = 1;

model::ModelConfig ArithmeticConfig(const text::Tokenizer& tokenizer) {
  model::ModelConfig config;
  config.vocab_size = tokenizer.vocab_size();
  config.hidden_size = 96;
  config.intermediate_size = 256;
  config.num_layers = 4;
  config.num_heads = 4;
  config.num_kv_heads = 4;
  config.head_dim = 24;
  config.max_positions = 64;
  config.tied_head = true;
  return config;
}

model::ModelConfig Llama95mConfig() {
  model::ModelConfig config;
  config.vocab_size = 8192;
  config.hidden_size = 768;
  config.intermediate_size = 2304;
  config.num_layers = 12;
  config.num_heads = 12;
  config.num_kv_heads = 4;
  config.head_dim = 64;
  config.max_positions = 1024;
  return config;
}

model::ModelConfig SmolLm2Config() {
  model::ModelConfig config;
  config.vocab_size = 49'152;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_layers = 30;
  config.num_heads = 9;
  config.num_kv_heads = 3;
  config.head_dim = 64;
  config.max_positions = 1024;
  config.tied_head = true;
  return config;
}

model::ModelConfig Qwen3Config() {
  model::ModelConfig config;
  config.architecture = model::Architecture::kQwen3;
  config.qk_norm = true;
  config.vocab_size = 151'936;
  config.hidden_size = 1024;
  config.intermediate_size = 3072;
  config.num_layers = 28;
  config.num_heads = 16;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.max_positions = 1024;
  config.tied_head = true;
  return config;
}

model::ModelConfig Shrunk(model::ModelConfig config) {
  config.num_layers = 1;
  config.vocab_size /= 16;
  return config;
}

model::ModelConfig Llama1bConfig() {
  model::ModelConfig config;
  config.vocab_size = 128'256;
  config.hidden_size = 2048;
  config.intermediate_size = 8192;
  config.num_layers = 16;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 64;
  config.max_positions = 2048;
  config.tied_head = true;
  return config;
}

// Random sums of two digits each; the answer's last digit comes first.
absl::StatusOr<std::vector<Problem>> MakeProblems(const text::Tokenizer& tokenizer) {
  Rng rng(kSeed);
  std::vector<Problem> problems;
  while (problems.size() < 1024) {
    const auto x = static_cast<int>(rng.Below(100)), y = static_cast<int>(rng.Below(100));
    std::string sum = absl::StrCat(x + y);
    std::reverse(sum.begin(), sum.end());
    Problem& problem = problems.emplace_back();
    TDOCK_ASSIGN_OR_RETURN(problem.prompt, tokenizer.Encode(absl::StrFormat("%02d+%02d=", x, y)));
    TDOCK_ASSIGN_OR_RETURN(problem.answer, tokenizer.Encode(sum));
    problem.answer.push_back(tokenizer.eos_id().value());
  }
  return problems;
}

}  // namespace

absl::StatusOr<Arithmetic> MakeArithmetic(const at::Device& device) {
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<text::Tokenizer> tokenizer, text::CharTokenizer::Create("0123456789+="));
  TDOCK_ASSIGN_OR_RETURN(std::vector<Problem> problems, MakeProblems(*tokenizer));
  const model::ModelConfig config = ArithmeticConfig(*tokenizer);
  return Arithmetic{std::move(tokenizer), std::move(problems), model::Decoder::Random(config, kSeed, device)};
}

model::Decoder MakeLlama95m(const at::Device& device, at::ScalarType dtype) {
  return model::Decoder::Random(Llama95mConfig(), kSeed, device, dtype);
}

model::Decoder MakeSmolLm2(const at::Device& device, at::ScalarType dtype, bool quick) {
  return model::Decoder::Random(quick ? Shrunk(SmolLm2Config()) : SmolLm2Config(), kSeed, device, dtype);
}

model::Decoder MakeQwen3(const at::Device& device, at::ScalarType dtype, bool quick) {
  return model::Decoder::Random(quick ? Shrunk(Qwen3Config()) : Qwen3Config(), kSeed, device, dtype);
}

model::Decoder MakeLlama1b(const at::Device& device) {
  return model::Decoder::Random(Llama1bConfig(), kSeed, device, at::kBFloat16);
}

std::vector<int64_t> MixedLengths(int64_t count, int64_t shortest, int64_t longest) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) {
    const double part = (static_cast<double>(i * 7 % count) + 0.5) / static_cast<double>(count);
    const double ratio = static_cast<double>(longest) / static_cast<double>(shortest);
    lengths.push_back(std::llround(static_cast<double>(shortest) * std::pow(ratio, part)));
  }
  return lengths;
}

Problem RandomProblem(const model::Decoder& decoder, int64_t prompt, int64_t answer, uint64_t prompt_seed,
                      uint64_t answer_seed) {
  return {RandomTokens(decoder, prompt, prompt_seed), RandomTokens(decoder, answer, ~answer_seed)};
}

std::vector<int32_t> RandomTokens(const model::Decoder& decoder, int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(decoder.config().vocab_size))));
  }
  return tokens;
}

std::unique_ptr<Workers> ShareSamples(int threads, int64_t samples) {
  at::set_num_threads(1);
  return std::make_unique<Workers>(static_cast<int>(std::min<int64_t>(threads, samples)),
                                   [] { at::init_num_threads(); });
}

}  // namespace tdock::bench
