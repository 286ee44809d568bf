// Shapes: B rows, T tokens of a row, E embedding size.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "model/decoder/decoder.h"
#include "model/decoder/testing/models.h"

namespace tdock::model {
namespace {

struct Precision {
  at::ScalarType weights, activations;
};
constexpr Precision kPrecisions[] = {
    {at::kFloat, at::kFloat}, {at::kBFloat16, at::kBFloat16}, {at::kFloat, at::kBFloat16}};

// TinyDecoder() in a precision, half of them with adapters, in batch-invariant mode.
Decoder InvariantDecoder(const ModelConfig& config, const Precision& precision) {
  const at::NoGradGuard no_grad;
  const Decoder drawn = TinyDecoder(config, 3, at::kCPU);
  Decoder decoder = Decoder::Uninitialised(config, at::kCPU, precision.weights);
  for (size_t i = 0; i < drawn.parameters().size(); ++i) decoder.parameters()[i].copy_(drawn.parameters()[i]);
  if (config.architecture == Architecture::kQwen2) {
    // 2 · 2.7 / 3 is no number of bfloat16.
    EXPECT_TRUE(decoder.AddAdapters({.rank = 3, .alpha = 2.7}, 5).ok());
    for (const auto& [name, factor] : decoder.NamedAdapters()) factor.copy_(0.3 * at::randn_like(factor));
  }
  decoder.SetComputeType(precision.activations);
  decoder.SetBatchInvariant(true);
  return decoder;
}

std::vector<Decoder> InvariantDecoders() {
  at::manual_seed(7);
  std::vector<Decoder> decoders;
  for (const ModelConfig& config : TinyConfigs()) {
    for (const Precision& precision : kPrecisions) decoders.push_back(InvariantDecoder(config, precision));
  }
  return decoders;
}

std::string NameOf(const Decoder& decoder) {
  return std::string(Name(decoder.config().architecture)) + ", weights " + c10::toString(decoder.dtype()) +
         ", activations " + c10::toString(decoder.compute_type());
}

bool HasSameBits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// The hidden states of a sequence alone, int64 [1, T] to [T, E].
at::Tensor Alone(const Decoder& decoder, const at::Tensor& tokens) {
  return decoder.Hidden({tokens, PositionsFromZero(1, tokens.size(1), at::kCPU)})[0];
}

std::vector<at::Tensor> Sequences(const Decoder& decoder) {
  std::vector<at::Tensor> sequences;
  for (const int64_t length : {5, 17, 1, 8}) {
    sequences.push_back(RandomTokens(1, length, decoder.config().vocab_size, static_cast<uint64_t>(length), at::kCPU));
  }
  return sequences;
}

TEST(BatchInvariant, HiddenStatesAreTheSamePaddedOnEitherSide) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kWidth = 19;
  for (const Decoder& decoder : InvariantDecoders()) {
    const std::vector<at::Tensor> sequences = Sequences(decoder);
    for (const bool left : {false, true}) {
      std::vector<at::Tensor> tokens, present;
      for (const at::Tensor& sequence : sequences) {
        const int64_t rest = kWidth - sequence.size(1);
        const std::vector<int64_t> around = left ? std::vector<int64_t>{rest, 0} : std::vector<int64_t>{0, rest};
        tokens.push_back(at::constant_pad_nd(sequence, around, 3));
        present.push_back(at::constant_pad_nd(at::ones_like(sequence), around, 0).to(at::kBool));
      }
      const at::Tensor hidden_BTE = decoder.Hidden(PaddedBatch(at::cat(tokens), at::cat(present)));
      for (size_t i = 0; i < sequences.size(); ++i) {
        const int64_t length = sequences[i].size(1);
        EXPECT_TRUE(HasSameBits(hidden_BTE[static_cast<int64_t>(i)].narrow(0, left ? kWidth - length : 0, length),
                                Alone(decoder, sequences[i])))
            << NameOf(decoder) << ", " << length << " tokens, padded on the " << (left ? "left" : "right");
      }
    }
  }
}

TEST(BatchInvariant, HiddenStatesAreTheSameInConcatenatedParts) {
  const at::NoGradGuard no_grad;
  for (const Decoder& decoder : InvariantDecoders()) {
    const std::vector<at::Tensor> sequences = Sequences(decoder);
    TokenBatch batch;
    std::vector<at::Tensor> positions;
    for (const at::Tensor& sequence : sequences) {
      batch.lengths.push_back(sequence.size(1));
      positions.push_back(PositionsFromZero(1, sequence.size(1), at::kCPU));
    }
    batch.tokens = at::cat(sequences, 1);
    batch.positions = at::cat(positions, 1);
    for (const int threads : {1, 2}) {
      at::set_num_threads(threads);
      const std::vector<at::Tensor> parts = decoder.Hidden(batch)[0].split(batch.lengths);
      at::set_num_threads(1);
      for (size_t i = 0; i < sequences.size(); ++i) {
        EXPECT_TRUE(HasSameBits(parts[i], Alone(decoder, sequences[i])))
            << NameOf(decoder) << ", " << batch.lengths[i] << " tokens, " << threads << " threads";
      }
    }
  }
}

TEST(BatchInvariant, HiddenStatesAndLogitsAreTheSameInAPromptGroup) {
  const at::NoGradGuard no_grad;
  for (const Decoder& decoder : InvariantDecoders()) {
    const int64_t vocab = decoder.config().vocab_size;
    const at::Tensor other = RandomTokens(1, 6, vocab, 1, at::kCPU), prompt = RandomTokens(1, 4, vocab, 2, at::kCPU);
    const at::Tensor answers[] = {RandomTokens(1, 7, vocab, 3, at::kCPU), RandomTokens(1, 3, vocab, 4, at::kCPU)};
    const at::Tensor tokens = at::cat({other, prompt, answers[0], answers[1]}, 1);
    const auto numbers = [&](std::array<int64_t, 4> of_parts) {
      return at::cat({at::full({1, 6}, of_parts[0], at::kLong), at::full({1, 4}, of_parts[1], at::kLong),
                      at::full({1, 7}, of_parts[2], at::kLong), at::full({1, 3}, of_parts[3], at::kLong)},
                     1);
    };
    const at::Tensor from = at::cat({PositionsFromZero(1, 6, at::kCPU), PositionsFromZero(1, 4, at::kCPU),
                                     4 + PositionsFromZero(1, 7, at::kCPU), 4 + PositionsFromZero(1, 3, at::kCPU)},
                                    1);
    const at::Tensor packed =
        decoder.Hidden({tokens, from, VisibleWithin(numbers({0, 1, 1, 1}), numbers({0, 0, 1, 2}))})[0];
    for (int64_t a = 0; a < 2; ++a) {
      const at::Tensor alone = Alone(decoder, at::cat({prompt, answers[a]}, 1));
      const at::Tensor answer = packed.narrow(0, a == 0 ? 10 : 17, a == 0 ? 7 : 3);
      EXPECT_TRUE(HasSameBits(answer, alone.narrow(0, 4, answer.size(0)))) << NameOf(decoder) << ", answer " << a;
      EXPECT_TRUE(
          HasSameBits(decoder.Logits(packed).narrow(0, a == 0 ? 10 : 17, 1), decoder.Logits(alone[4].unsqueeze(0))));
    }
  }
}

TEST(BatchInvariant, ValuesAreTheSame) {
  const at::NoGradGuard no_grad;
  ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/false);
  config.head = Head::kValue;
  const Decoder decoder = InvariantDecoder(config, kPrecisions[0]);
  const at::Tensor tokens = RandomTokens(5, 9, config.vocab_size, 1, at::kCPU);
  const at::Tensor values = decoder.Values(decoder.Hidden({tokens, PositionsFromZero(5, 9, at::kCPU)}));
  EXPECT_TRUE(HasSameBits(values[3], decoder.Values(Alone(decoder, tokens.narrow(0, 3, 1)))));
}

TEST(BatchInvariant, GivesAboutTheNumbersAndGradientsOfTheFastMode) {
  for (Decoder& decoder : InvariantDecoders()) {
    const at::Tensor tokens = RandomTokens(2, 11, decoder.config().vocab_size, 1, at::kCPU);
    const at::Tensor factors = at::randn({2, 11, decoder.used_tokens()});
    const auto run = [&](bool invariant, Recomputed recomputed) {
      decoder.SetBatchInvariant(invariant);
      decoder.SetRecomputed(recomputed);
      decoder.SetTrainable(true);
      const at::Tensor hidden = decoder.Hidden({tokens, PositionsFromZero(2, 11, at::kCPU)});
      const at::Tensor logits = decoder.Logits(hidden);
      std::vector<at::Tensor> all = torch::autograd::grad({(logits * factors).sum()}, decoder.trainable(), {},
                                                          std::nullopt, false, /*allow_unused=*/true);
      all.push_back(logits.detach());
      return all;
    };
    const std::vector<at::Tensor> fast = run(false, Recomputed::kNothing), invariant = run(true, Recomputed::kNothing);
    const std::vector<at::Tensor> recomputed = run(true, Recomputed::kLayers);
    const double tolerance = decoder.compute_type() == at::kFloat ? 1e-4 : 0.1;
    for (size_t i = 0; i < fast.size(); ++i) {
      if (!fast[i].defined()) continue;
      const double size = fast[i].norm().item<double>() + 1e-6;
      EXPECT_LE((fast[i] - invariant[i]).norm().item<double>(), tolerance * size)
          << NameOf(decoder) << ", tensor " << i;
      EXPECT_TRUE(HasSameBits(recomputed[i], invariant[i])) << NameOf(decoder) << ", tensor " << i;
    }
  }
}

// The operations of libtorch whose result at a place depends on nothing but the numbers of that place: they round once,
// or move numbers.
constexpr char kExact[] =
    "_local_scalar_dense _reshape_alias _to_copy _unsafe_view add arange as_strided cat chunk clamp_min clone "
    "constant_pad_nd contiguous copy_ detach embedding empty empty_like empty_strided expand fill_ "
    "index_select item max mul narrow neg ones relu reshape resize_ select slice split split_with_sizes squeeze to "
    "transpose unsqueeze view zero_ zeros";

std::set<std::string>& Seen() {
  static std::set<std::string> seen;
  return seen;
}

TEST(BatchInvariant, NoSumIsThatOfLibtorch) {
  const at::NoGradGuard no_grad;
  std::set<std::string> exact;
  for (const absl::string_view name : absl::StrSplit(kExact, ' ')) exact.insert(absl::StrCat("aten::", name));
  for (const Decoder& decoder : InvariantDecoders()) {
    const at::Tensor tokens = RandomTokens(2, 11, decoder.config().vocab_size, 1, at::kCPU);
    const at::Tensor positions = PositionsFromZero(2, 11, at::kCPU);
    Seen().clear();
    const at::CallbackHandle handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          Seen().insert(function.name());
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
    decoder.Logits(decoder.Hidden({tokens, positions}));
    at::removeCallback(handle);
    EXPECT_TRUE(Seen().contains("aten::embedding"));  // the observer works
    for (const std::string& name : Seen()) EXPECT_TRUE(exact.contains(name)) << NameOf(decoder) << ": " << name;
  }
}

TEST(BatchInvariant, IsKeptByCopies) {
  Decoder decoder = InvariantDecoder(TinyConfig(Architecture::kQwen2, /*tied_head=*/true), kPrecisions[0]);
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = RandomTokens(1, 6, decoder.config().vocab_size, 1, at::kCPU);
  for (const Decoder& copy : {decoder.Clone(), decoder.Snapshot()}) {
    EXPECT_TRUE(copy.batch_invariant());
    EXPECT_TRUE(HasSameBits(Alone(copy, tokens), Alone(decoder, tokens)));
  }
  EXPECT_TRUE(decoder.Merged().batch_invariant());
  decoder.SetBatchInvariant(false);
  EXPECT_FALSE(decoder.Clone().batch_invariant());
}

TEST(BatchInvariant, IsWhereThereAreLoops) {
  const ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/true);
  Decoder decoder = TinyDecoder(config, 3, at::kCPU);
  EXPECT_TRUE(decoder.batch_invariant());
  for (const at::ScalarType type : {at::kHalf, at::kDouble}) {
    decoder.SetComputeType(type);
    EXPECT_FALSE(decoder.batch_invariant());
    EXPECT_FALSE(decoder.HasKernels());
    EXPECT_NO_THROW(Alone(decoder, RandomTokens(1, 3, config.vocab_size, 1, at::kCPU)));  // by libtorch
    EXPECT_THROW(decoder.PackWeights(), c10::Error);
  }
  decoder.SetComputeType(at::kBFloat16);
  EXPECT_TRUE(decoder.batch_invariant());
  decoder.SetBatchInvariant(false);
  EXPECT_FALSE(decoder.batch_invariant());
}

TEST(PackedWeights, GiveTheSameNumbersAsTheWeights) {
  const at::NoGradGuard no_grad;
  for (Decoder& decoder : InvariantDecoders()) {
    SCOPED_TRACE(NameOf(decoder));
    const at::Tensor tokens = RandomTokens(1, 7, decoder.config().vocab_size, 1, at::kCPU);
    decoder.LimitVocabulary(decoder.config().vocab_size - 1);
    const auto logits = [&](const Decoder& of) { return of.Logits(Alone(of, tokens)); };
    Decoder packed = decoder;
    packed.PackWeights();
    const at::Tensor expected = logits(decoder);
    EXPECT_TRUE(at::equal(logits(packed), expected));
    // Later changes are not seen.
    for (const auto& [name, weight] : decoder.NamedWeights()) {
      if (name.find("norm") == std::string::npos && name.find("embed") == std::string::npos) weight.mul_(1.5);
    }
    EXPECT_FALSE(at::equal(logits(decoder), expected));
    packed.PackWeights();
    EXPECT_TRUE(at::equal(logits(packed), logits(decoder)));
  }
}

TEST(PackedWeights, InInt8AreNearTheWeights) {
  const ModelConfig config = TinyConfig(Architecture::kLlama, /*tied_head=*/false);
  const Decoder decoder = TinyDecoder(config, 3, at::kCPU);
  Decoder packed = decoder;
  packed.PackWeights(/*int8=*/true);
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = RandomTokens(1, 9, config.vocab_size, 1, at::kCPU);
  const at::Tensor expected = decoder.Logits(Alone(decoder, tokens));
  const double difference = (packed.Logits(Alone(packed, tokens)) - expected).abs().max().item<double>();
  EXPECT_GT(difference, 0);
  EXPECT_LT(difference, 0.05 * expected.abs().max().item<double>());
  ModelConfig whole = config;  // of whole groups
  whole.hidden_size = 64;
  whole.intermediate_size = 128;
  EXPECT_LT(Decoder::PackedBytes(whole, at::kFloat, true), Decoder::PackedBytes(whole, at::kFloat) / 3);
}

}  // namespace
}  // namespace tdock::model
