#include "model/files/safetensors.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "model/decoder/weights.h"
#include "model/files/testing/files.h"
#include "model/files/testing/one_file_env.h"

namespace tdock::model {
namespace {

using testing::HasSubstr;

absl::StatusOr<SafetensorsFile> OpenBytes(const std::string& bytes) {
  OneFileEnv env(bytes);
  return SafetensorsFile::Open(env, "model.safetensors");
}

std::string FileOf(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + header + data;
}

// What is wrong with a file of this header and so many bytes of data.
std::string Complaint(const std::string& header, size_t data_size,
                      absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const auto file = OpenBytes(FileOf(header, std::string(data_size, '\1')));
  EXPECT_EQ(file.status().code(), code) << header.substr(0, 200);
  const std::string message(file.status().message());
  EXPECT_THAT(message, testing::StartsWith("model.safetensors: "));
  return message;
}

std::string TensorHeader(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return absl::StrCat(R"({"a":{"dtype":)", dtype, R"(,"shape":)", shape, R"(,"data_offsets":)", offsets, "}}");
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

TEST(Safetensors, AreReadBackBitForBit) {
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
  EXPECT_EQ(ReadTensor(*file, "bias").status().message(), "no tensor 'bias'");
}

TEST(Safetensors, KeepInfinitiesAndNans) {
  const at::Tensor odd = at::tensor({1.0f / 0.0f, -1.0f / 0.0f, std::nanf("7"), -0.0f, 1e-45f});
  const auto file = OpenBytes(SavedBytes({{"odd", odd}}));
  const at::Tensor read = *ReadTensor(*file, "odd");
  EXPECT_EQ(std::memcmp(read.const_data_ptr(), odd.const_data_ptr(), odd.nbytes()), 0);
}

TEST(Safetensors, OutliveTheirFileObject) {
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

TEST(Safetensors, HaveTheBytesThatTheFormatSays) {
  const std::string bytes = SavedBytes({{"b", at::tensor({1.0f})}, {"a", at::tensor({2.0f, 3.0f})}});
  const std::string header = R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                             R"("a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})";
  const size_t padded = (header.size() + 7) / 8 * 8;
  const float data[] = {1, 2, 3};
  EXPECT_EQ(bytes, FileOf(header + std::string(padded - header.size(), ' '),
                          std::string(reinterpret_cast<const char*>(data), sizeof data)));
}

TEST(Safetensors, AreReadFromAnyPlaceInTheFile) {
  const float values[] = {1.5f, -2.0f};
  for (size_t padding = 0; padding < 8; ++padding) {
    const std::string header = TensorHeader("\"F32\"", "[2]", "[0,8]") + std::string(padding, ' ');
    const auto file = OpenBytes(FileOf(header, std::string(reinterpret_cast<const char*>(values), sizeof values)));
    ASSERT_TRUE(file.ok()) << file.status();
    const at::Tensor tensor = *ReadTensor(*file, "a");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % sizeof(float), 0u);
    EXPECT_TRUE(at::equal(tensor, at::tensor({1.5f, -2.0f})));
  }
}

TEST(Safetensors, CutAnywhereAreRefused) {
  const std::string bytes = SavedBytes(SomeTensors());
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto file = OpenBytes(bytes.substr(0, length));
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << length;
  }
  EXPECT_TRUE(OpenBytes(bytes).ok());
  EXPECT_THAT(OpenBytes(bytes + "x").status().message(), HasSubstr("of the data belong to no tensor"));
}

TEST(Safetensors, WithALyingHeaderLengthAreRefused) {
  const std::string bytes = SavedBytes(SomeTensors());
  uint64_t right = 0;
  std::memcpy(&right, bytes.data(), sizeof right);
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, right - 8, right + 1, bytes.size() - 8, bytes.size() - 7,
                              uint64_t{1} << 40, UINT64_MAX - 7, UINT64_MAX}) {
    std::string lying = bytes;
    std::memcpy(lying.data(), &size, sizeof size);
    EXPECT_EQ(OpenBytes(lying).status().code(), absl::StatusCode::kInvalidArgument) << size;
  }
}

TEST(Safetensors, WithAMalformedHeaderAreRefused) {
  EXPECT_THAT(Complaint("[]", 0), HasSubstr("header: not a JSON object"));
  EXPECT_THAT(Complaint("{\"a\":", 0), HasSubstr("header: not JSON: a syntax error at byte 6"));
  EXPECT_THAT(Complaint(R"({"a":1})", 0), HasSubstr("tensor 'a': needs dtype, shape and data_offsets"));
  EXPECT_THAT(Complaint(R"({"a":{"dtype":"F32","shape":[]}})", 4), HasSubstr("needs dtype, shape and data_offsets"));
  const std::string deep(1'000'000, '[');
  EXPECT_THAT(Complaint(R"({"a":)" + deep + std::string(deep.size(), ']') + "}", 0), HasSubstr("inside one another"));
  const std::string once = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_THAT(Complaint("{" + once + "," + once + "}", 4), HasSubstr("has 'a' twice"));
}

TEST(Safetensors, OfADTypeThatIsNotReadAreRefusedByName) {
  for (const std::string dtype : {"\"F8_E4M3\"", "\"I4\"", "\"f32\"", "\"\"", "32", "null", "[\"F32\"]"}) {
    EXPECT_THAT(Complaint(TensorHeader(dtype, "[1]", "[0,4]"), 4, absl::StatusCode::kUnimplemented),
                HasSubstr("dtype " + dtype + " is not supported"));
  }
}

TEST(Safetensors, OutsideOfTheirFileAreRefused) {
  for (const std::string offsets : {"[0,5]", "[4,8]", "[4,0]", "[5,5]", "[0,18446744073709551615]",
                                    "[18446744073709551612,18446744073709551615]"}) {
    EXPECT_THAT(Complaint(TensorHeader("\"F32\"", "[1]", offsets), 4), HasSubstr("lie outside of the 4 bytes of data"));
  }
  for (const std::string offsets : {"[0]", "[0,4,4]", "[-4,0]", "[0,4.0]", "[\"0\",4]", "{}", "4", "[0,1e1]"}) {
    EXPECT_THAT(Complaint(TensorHeader("\"F32\"", "[1]", offsets), 4),
                HasSubstr("data_offsets must be two non-negative integers"));
  }
}

TEST(Safetensors, OfAShapeThatDoesNotFitTheirBytesAreRefused) {
  EXPECT_THAT(Complaint(TensorHeader("\"F32\"", "[2]", "[0,4]"), 4), HasSubstr("needs 2 elements of 4 bytes"));
  EXPECT_THAT(Complaint(TensorHeader("\"F16\"", "[1]", "[0,4]"), 4), HasSubstr("needs 1 elements of 2 bytes"));
  EXPECT_THAT(Complaint(TensorHeader("\"F32\"", "[0]", "[0,4]"), 4), HasSubstr("needs 0 elements"));
  // Products that wrap around to 1, to 0, and over the number of bytes only.
  for (const std::string shape :
       {"[4294967296,4294967296]", "[9223372036854775808,2]", "[18446744073709551615,18446744073709551615]",
        "[4611686018427387905,4]", "[0,4611686018427387904,4611686018427387904]", "[4611686018427387904]"}) {
    EXPECT_THAT(Complaint(TensorHeader("\"F32\"", shape, "[0,4]"), 4), HasSubstr("shape overflows")) << shape;
  }
  EXPECT_THAT(Complaint(TensorHeader("\"F32\"", "[-1]", "[0,4]"), 4), HasSubstr("non-negative integers"));
  EXPECT_THAT(Complaint(TensorHeader("\"F32\"", "[1.0]", "[0,4]"), 4), HasSubstr("non-negative integers"));
  EXPECT_THAT(Complaint(TensorHeader("\"F32\"", "1", "[0,4]"), 4), HasSubstr("shape must be a list"));
  EXPECT_THAT(Complaint(TensorHeader("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4), HasSubstr("at most 8 sizes"));
}

TEST(Safetensors, ThatShareOrLeaveBytesAreRefused) {
  const auto two = [](const std::string& first, const std::string& second) {
    return absl::StrCat(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)", first,
                        R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)", second, "}}");
  };
  EXPECT_TRUE(OpenBytes(FileOf(two("[8,16]", "[0,8]"), std::string(16, 'x'))).ok());
  EXPECT_THAT(Complaint(two("[0,8]", "[4,12]"), 12), HasSubstr("tensors overlap"));
  EXPECT_THAT(Complaint(two("[0,8]", "[0,8]"), 8), HasSubstr("tensors overlap"));
  EXPECT_THAT(Complaint(two("[0,8]", "[12,20]"), 20), HasSubstr("bytes 8 to 12 of the data belong to no tensor"));
  EXPECT_THAT(Complaint(two("[4,12]", "[12,20]"), 20), HasSubstr("bytes 0 to 4 of the data belong to no tensor"));
  EXPECT_THAT(Complaint(two("[0,8]", "[8,16]"), 17), HasSubstr("bytes 16 to 17 of the data belong to no tensor"));
}

// Whatever is done to a file, it is refused, or its tensors lie inside it.
TEST(Safetensors, SurviveMutations) {
  const std::string original = SavedBytes({{"weight", at::ones({3, 2})},
                                           {"half", at::ones({5}).to(at::kHalf)},
                                           {"brain", at::ones({2, 2}).to(at::kBFloat16)}});
  Rng rng(1);
  int opened = 0;
  const int rounds = 4000;
  for (int round = 0; round < rounds; ++round) {
    std::string bytes = original;
    for (uint64_t change = 0; change <= rng.Below(3); ++change) {
      const size_t place = rng.Below(bytes.size());
      switch (rng.Below(5)) {
        case 0:
          bytes[place] = static_cast<char>(rng.Next());
          break;
        case 1:  // another digit in the header, so that it often still parses
          if (const size_t digit = bytes.find_first_of("0123456789", 8 + rng.Below(bytes.size()));
              digit < bytes.size()) {
            bytes[digit] = static_cast<char>('0' + rng.Below(10));
          }
          break;
        case 2:
          bytes.erase(place, 1 + rng.Below(4));
          break;
        case 3:
          bytes.insert(place, bytes.substr(rng.Below(bytes.size()), rng.Below(16)));
          break;
        default:
          bytes[place] = static_cast<char>(bytes[place] ^ (1 << rng.Below(8)));
      }
      if (bytes.empty()) break;
    }
    const auto file = OpenBytes(bytes);
    if (!file.ok()) {
      EXPECT_THAT(file.status().code(),
                  testing::AnyOf(absl::StatusCode::kInvalidArgument, absl::StatusCode::kUnimplemented));
      continue;
    }
    ++opened;
    for (const std::string& name : file->names()) {
      const auto tensor = ReadTensor(*file, name);
      ASSERT_TRUE(tensor.ok());
      EXPECT_LE(tensor->nbytes(), bytes.size());
      (void)tensor->to(at::kFloat).sum();  // reads every byte
    }
  }
  EXPECT_GT(opened, rounds / 20);
  EXPECT_LT(opened, rounds);
}

TEST(WriteTensors, RefusesOtherDTypesAndLeavesNothing) {
  const TestFolder folder;
  const absl::Status status =
      WriteTensors(Env::Real(), folder.Path("file"), {{"ids", at::zeros({2}).to(at::kFloat8_e4m3fn)}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("tensor 'ids' has dtype float8_e4m3fn"));
  EXPECT_TRUE(Env::Real().List(folder.path())->empty());
}

TEST(SafetensorsFile, OfAFileThatIsNotThereIsNotFound) {
  const auto file = SafetensorsFile::Open(Env::Real(), "/nonexistent/model.safetensors");
  EXPECT_EQ(file.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(file.status().message(), HasSubstr("/nonexistent/model.safetensors"));
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

}  // namespace
}  // namespace tdock::model
