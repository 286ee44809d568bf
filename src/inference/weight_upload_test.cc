#include "inference/weight_upload.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/rng.h"
#include "core/base/testing/fails.h"
#include "core/tensor/checksum.h"
#include "model/decoder/testing/models.h"

namespace tdock::inference {
namespace {

using model::Architecture;
using model::Decoder;

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr at::ScalarType kScalarTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

// What a program sends, and the weights that should arrive.
struct Sent {
  std::vector<TensorAsk> tensors = {};
  std::string bytes = {};
  model::NamedTensors weights = {};
};

Sent Send(const Decoder& decoder, Rng& rng) {
  Sent sent;
  model::NamedTensors weights = decoder.NamedWeights();
  for (size_t i = weights.size(); i > 1; --i) std::swap(weights[i - 1], weights[rng.Below(i)]);
  for (const auto& [name, weight] : weights) {
    const size_t dtype = rng.Below(3);
    const at::Tensor numbers = weight.to(kScalarTypes[dtype]).contiguous();
    sent.tensors.push_back({.name = name, .dtype = kDTypes[dtype], .shape = weight.sizes().vec()});
    sent.bytes.append(static_cast<const char*>(numbers.const_data_ptr()), numbers.nbytes());
    sent.weights.emplace_back(name, numbers.to(at::kFloat));
  }
  return sent;
}

void ExpectWeights(const Decoder& decoder, const model::NamedTensors& expected) {
  model::NamedTensors weights = decoder.NamedWeights();
  for (const auto& [name, weight] : expected) {
    const auto found =
        std::find_if(weights.begin(), weights.end(), [&name = name](const auto& one) { return one.first == name; });
    ASSERT_NE(found, weights.end()) << name;
    EXPECT_TRUE(at::equal(found->second, weight)) << name;
  }
  EXPECT_EQ(weights.size(), expected.size());
}

TEST(WeightUpload, TakesPiecesOfAnySizeInAnyOrderOfTensors) {
  for (const model::ModelConfig& config : model::TinyConfigs()) {  // GPT-2's weights are [in, out]
    for (uint64_t seed = 0; seed < 3; ++seed) {
      Rng rng(seed);
      const Sent sent = Send(model::TinyDecoder(config, seed, at::kCPU), rng);
      Decoder empty = Decoder::Uninitialised(config, at::kCPU);
      ASSERT_FALSE(WeightUpload::Check(sent.tensors, empty).has_value());
      WeightUpload upload(sent.tensors, std::move(empty));
      ASSERT_EQ(upload.total_bytes(), sent.bytes.size());
      const size_t most = seed < 1 ? 3 : 1 + sent.bytes.size() / (seed + 1);
      for (size_t at = 0; at < sent.bytes.size();) {
        const size_t size = std::min(1 + rng.Below(most), sent.bytes.size() - at);
        const size_t from = at - std::min(at, rng.Below(10));  // some of it again
        ASSERT_TRUE(upload.Add(from, absl::string_view(sent.bytes).substr(from, at + size - from)).ok());
        at += size;
        ASSERT_EQ(upload.received_bytes(), at);
      }
      EXPECT_EQ(upload.checksum(), Checksum(std::as_bytes(std::span(sent.bytes))));
      ExpectWeights(upload.decoder(), sent.weights);
    }
  }
}

TEST(WeightUpload, RefusesGapsAndMoreThanThereIs) {
  Rng rng(1);
  const model::ModelConfig config = model::TinyConfig(Architecture::kQwen2, false);
  const Sent sent = Send(model::TinyDecoder(config, 3, at::kCPU), rng);
  WeightUpload upload(sent.tensors, Decoder::Uninitialised(config, at::kCPU));
  const absl::string_view bytes = sent.bytes;
  EXPECT_TRUE(absl::IsFailedPrecondition(upload.Add(1, bytes.substr(1, 5))));
  EXPECT_TRUE(absl::IsFailedPrecondition(upload.Add(~uint64_t{0}, bytes.substr(0, 5))));
  EXPECT_TRUE(upload.Add(0, bytes.substr(0, 7)).ok());
  EXPECT_TRUE(absl::IsOutOfRange(upload.Add(3, sent.bytes)));
  EXPECT_EQ(upload.received_bytes(), 7U);
  EXPECT_TRUE(upload.Add(7, bytes.substr(7)).ok());
  EXPECT_TRUE(absl::IsOutOfRange(upload.Add(bytes.size(), "x")));
  EXPECT_TRUE(upload.Add(bytes.size(), "").ok());
  EXPECT_TRUE(upload.Add(0, bytes.substr(0, 7)).ok()) << "asked again";
  ExpectWeights(upload.decoder(), sent.weights);
}

TEST(WeightUpload, NamesTheFirstNumberThatIsNotFinite) {
  const model::ModelConfig config = model::TinyConfig(Architecture::kQwen2, false);
  for (const size_t piece : {size_t{3}, size_t{1} << 20}) {
    Rng rng(1);
    Sent sent = Send(model::TinyDecoder(config, 3, at::kCPU), rng);
    size_t begin = 0, number = 0;  // of the second tensor
    for (const int64_t size : sent.tensors[0].shape) number = std::max(number, size_t{1}) * static_cast<size_t>(size);
    begin = number * SizeOf(sent.tensors[0].dtype);
    const size_t size = SizeOf(sent.tensors[1].dtype);
    for (size_t i = 1; i <= size; ++i) sent.bytes[begin + 5 * size + i - 1] = '\xff';  // NaN in each of the dtypes
    WeightUpload upload(sent.tensors, Decoder::Uninitialised(config, at::kCPU));
    absl::Status status;
    for (size_t at = 0; at < sent.bytes.size() && status.ok(); at += piece) {
      status = upload.Add(at, absl::string_view(sent.bytes).substr(at, piece));
    }
    const std::string place = sent.tensors[1].shape.size() == 1 ? "[5]" : "[0, 5]";
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, {"'" + sent.tensors[1].name + "'", "nan", place}));
  }
}

TEST(WeightUpload, NamesTheTensorsThatAreNotTheModels) {
  Rng rng(1);
  const Decoder decoder = model::TinyDecoder(model::TinyConfig(Architecture::kQwen2, false), 3, at::kCPU);
  const std::vector<TensorAsk> all = Send(decoder, rng).tensors;
  const auto wrong = [&](std::vector<TensorAsk> tensors) {
    const auto problem = WeightUpload::Check(tensors, decoder);
    return problem ? problem->message : "";
  };
  EXPECT_EQ(wrong(all), "");
  std::vector<TensorAsk> given = all;
  given.pop_back();
  EXPECT_THAT(wrong(given), Mentions({"'" + all.back().name + "'", "missing"}));
  given = all;
  given.push_back(given.front());
  EXPECT_THAT(wrong(given), Mentions({"'" + all.front().name + "'", "twice"}));
  given = all;
  given.front().shape = {int64_t{1} << 52, int64_t{1} << 52, 3};
  EXPECT_THAT(wrong(given),
              Mentions({"'" + all.front().name + "'", "[4503599627370496, 4503599627370496, 3]", "not ["}));
  given = std::vector<TensorAsk>(1000, {.name = std::string(1000, 'x'), .shape = {1}});
  EXPECT_THAT(wrong(given), Mentions({"more"}));
  EXPECT_LT(wrong(given).size(), 1500U);
}

}  // namespace
}  // namespace tdock::inference
