#include "model/decoder/weights.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "core/base/testing/fails.h"
#include "model/files/testing/files.h"
#include "model/files/testing/one_file_env.h"

namespace tdock::model {
namespace {

absl::StatusOr<SafetensorsFile> OpenBytes(const std::string& bytes) {
  OneFileEnv env(bytes);
  return SafetensorsFile::Open(env, "model.safetensors");
}

NamedTensors SomeTensors() {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);
  return {{"weight", at::randn({3, 5}, generator)},
          {"half", at::randn({7}, generator).to(at::kHalf)},
          {"brain", at::randn({2, 1, 3}, generator).to(at::kBFloat16)},
          {"view", at::randn({8, 4}, generator).narrow(0, 2, 3)},
          {"transposed", at::randn({2, 6}, generator).t()},
          {"scalar", at::randn({}, generator)},
          {"empty", at::empty({0, 4})}};
}

std::string SavedBytes(const NamedTensors& tensors) {
  const TestFolder folder;
  EXPECT_TRUE(WriteTensors(Env::Real(), folder.Path("file"), tensors).ok());
  return *Env::Real().ReadFile(folder.Path("file"));
}

TEST(Weights, AreReadBackBitForBit) {
  const TestFolder folder;
  const NamedTensors tensors = SomeTensors();
  ASSERT_TRUE(WriteTensors(Env::Real(), folder.Path("file"), tensors).ok());
  const auto file = SafetensorsFile::Open(Env::Real(), folder.Path("file"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const auto read = ReadTensor(*file, name);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(read->sizes(), tensor.sizes()) << name;
    const at::Tensor dense = tensor.contiguous();
    EXPECT_EQ(std::memcmp(read->const_data_ptr(), dense.const_data_ptr(), dense.nbytes()), 0) << name;
  }
  EXPECT_THAT(ReadTensor(*file, "bias").status(), Fails(absl::StatusCode::kNotFound, {"'bias'"}));
}

TEST(Weights, KeepInfinitiesAndNans) {
  const at::Tensor odd = at::tensor({1.0f / 0.0f, -1.0f / 0.0f, std::nanf("7"), -0.0f, 1e-45f});
  const auto file = OpenBytes(SavedBytes({{"odd", odd}}));
  const at::Tensor read = *ReadTensor(*file, "odd");
  EXPECT_EQ(std::memcmp(read.const_data_ptr(), odd.const_data_ptr(), odd.nbytes()), 0);
}

TEST(Weights, OutliveTheirFileObject) {
  const TestFolder folder;
  ASSERT_TRUE(WriteTensors(Env::Real(), folder.Path("file"), {{"a", at::arange(4, at::kFloat)}}).ok());
  at::Tensor tensor;
  {
    const auto file = SafetensorsFile::Open(Env::Real(), folder.Path("file"));
    tensor = *ReadTensor(*file, "a");
  }
  ASSERT_TRUE(Env::Real().Remove(folder.Path("file")).ok());
  EXPECT_TRUE(at::equal(tensor, at::arange(4, at::kFloat)));
}

TEST(Weights, AreReadFromAnyPlaceInTheFile) {
  const float values[] = {1.5f, -2.0f};
  for (size_t padding = 0; padding < 8; ++padding) {
    const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})" + std::string(padding, ' ');
    const uint64_t size = header.size();
    const auto file = OpenBytes(std::string(reinterpret_cast<const char*>(&size), sizeof size) + header +
                                std::string(reinterpret_cast<const char*>(values), sizeof values));
    ASSERT_TRUE(file.ok()) << file.status();
    const at::Tensor tensor = *ReadTensor(*file, "a");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % sizeof(float), 0u);
    EXPECT_TRUE(at::equal(tensor, at::tensor({1.5f, -2.0f})));
  }
}

TEST(WriteTensors, RefusesOtherDTypesAndLeavesNothing) {
  const TestFolder folder;
  const absl::Status status =
      WriteTensors(Env::Real(), folder.Path("file"), {{"ids", at::zeros({2}).to(at::kFloat8_e4m3fn)}});
  EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, {"tensor 'ids'", "float8_e4m3fn"}));
  EXPECT_TRUE(Env::Real().List(folder.path())->empty());
}

TEST(CopyTensor, CopiesPieceByPieceWhateverTheAlignment) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const NamedTensors tensors = {{"byte", at::ones({1}, at::kByte)},  // what follows it is not aligned
                                {"large", at::randn({3000, 1024}, generator)},
                                {"scalar", at::randn({}, generator)},
                                {"empty", at::empty({0, 4})}};
  const auto file = OpenBytes(SavedBytes(tensors));
  ASSERT_TRUE(file.ok()) << file.status();
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor into = at::full(tensor.sizes(), 7, at::kDouble);
    ASSERT_TRUE(CopyTensor(*file, name, into).ok());
    EXPECT_TRUE(at::equal(into, tensor.to(at::kDouble))) << name;
  }
  EXPECT_EQ(CopyTensor(*file, "other", at::empty({1})).code(), absl::StatusCode::kNotFound);
}

TEST(CopyWeight, NamesTheFirstNumberThatIsNotFinite) {
  const float nan = std::nanf(""), infinite = std::numeric_limits<float>::infinity();
  for (const float odd : {nan, infinite, -infinite}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      at::Tensor values = at::ones({3000, 1024});  // several pieces
      values[2999][7] = odd;
      values[2999][9] = odd;
      const auto file = OpenBytes(SavedBytes({{"layer", values.to(dtype)}}));
      ASSERT_TRUE(file.ok()) << file.status();
      EXPECT_THAT(CopyWeight(*file, "layer", at::empty({3000, 1024})),
                  Fails(absl::StatusCode::kInvalidArgument,
                        {"model.safetensors", "'layer'", "[2999, 7]", std::isnan(odd) ? "nan" : "inf"}));
      EXPECT_TRUE(CopyTensor(*file, "layer", at::empty({3000, 1024})).ok());
    }
  }
}

TEST(CopyWeight, NamesTheFirstNumberThatTheDTypeDoesNotHold) {
  const auto file = OpenBytes(SavedBytes({{"wide", at::tensor({1e30f, -3.4e38f}).view({1, 2})},
                                          {"count", at::full({2}, 1 << 30, at::kInt)},
                                          {"one", at::full({}, -7e4)}}));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto copied = [&](const char* name, at::IntArrayRef shape, at::ScalarType dtype) {
    return CopyWeight(*file, name, at::empty(shape, dtype));
  };
  EXPECT_TRUE(copied("wide", {1, 2}, at::kFloat).ok());
  EXPECT_THAT(copied("wide", {1, 2}, at::kBFloat16),
              Fails(absl::StatusCode::kInvalidArgument, {"'wide'", "-3.4e+38", "[0, 1]", "bfloat16"}));
  EXPECT_THAT(copied("wide", {1, 2}, at::kHalf),
              Fails(absl::StatusCode::kInvalidArgument, {"'wide'", "1e+30", "[0, 0]", "float16"}));
  EXPECT_TRUE(copied("count", {2}, at::kFloat).ok());
  EXPECT_THAT(copied("one", {}, at::kHalf), Fails(absl::StatusCode::kInvalidArgument, {"'one'", "[]"}));
}

}  // namespace
}  // namespace tdock::model
