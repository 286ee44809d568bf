#include "model/files/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/testing/fails.h"
#include "model/files/testing/files.h"
#include "model/files/testing/one_file_env.h"

namespace tdock::model {
namespace {

absl::StatusOr<SafetensorsFile> OpenBytes(const std::string& bytes) {
  OneFileEnv env(bytes);
  return SafetensorsFile::Open(env, "model.safetensors");
}

std::string FileOf(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + header + data;
}

// What is wrong with a file of this header and so many bytes of data.
std::string FileComplaint(const std::string& header, size_t data_size,
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

// Of these dtypes and shapes, with bytes that count up.
std::string SavedBytes(const std::vector<NamedInfo>& tensors) {
  const TestFolder folder;
  std::vector<std::byte> bytes;
  const auto bytes_of = [&](size_t index) -> absl::StatusOr<std::span<const std::byte>> {
    bytes.resize(tensors[index].info.bytes());
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
    return bytes;
  };
  EXPECT_TRUE(WriteSafetensors(Env::Real(), folder.Path("file"), tensors, bytes_of).ok());
  return *Env::Real().ReadFile(folder.Path("file"));
}

std::vector<NamedInfo> SomeTensors() {
  return {{"weight", {DType::kF32, {3, 5}}}, {"half", {DType::kF16, {7}}},  {"brain", {DType::kBF16, {2, 1, 3}}},
          {"view", {DType::kF32, {8, 3}}},   {"scalar", {DType::kF32, {}}}, {"empty", {DType::kF32, {0, 4}}}};
}

TEST(Safetensors, AreReadBackByteForByte) {
  const std::vector<NamedInfo> tensors = SomeTensors();
  const auto file = OpenBytes(SavedBytes(tensors));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->names().size(), tensors.size());
  for (const auto& [name, info] : tensors) {
    ASSERT_TRUE(file->Has(name)) << name;
    EXPECT_EQ(file->Info(name), info) << name;
    const std::span<const std::byte> bytes = file->Bytes(name);
    ASSERT_EQ(bytes.size(), info.bytes()) << name;
    for (size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], static_cast<std::byte>(i)) << name;
  }
  EXPECT_FALSE(file->Has("bias"));
}

TEST(Safetensors, HaveTheBytesThatTheFormatSays) {
  const std::string bytes = SavedBytes({{"b", {DType::kF32, {1}}}, {"a", {DType::kF32, {2}}}});
  const std::string header = R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                             R"("a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})";
  const size_t padded = (header.size() + 7) / 8 * 8;
  const std::string data("\0\1\2\3\0\1\2\3\4\5\6\7", 12);
  EXPECT_EQ(bytes, FileOf(header + std::string(padded - header.size(), ' '), data));
}

TEST(Safetensors, CutAnywhereAreRefused) {
  const std::string bytes = SavedBytes(SomeTensors());
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto file = OpenBytes(bytes.substr(0, length));
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << length;
  }
  EXPECT_TRUE(OpenBytes(bytes).ok());
  EXPECT_THAT(OpenBytes(bytes + "x").status(),
              Fails(absl::StatusCode::kInvalidArgument, {"model.safetensors: ", "no tensor"}));
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

TEST(Safetensors, ThatAreSomethingElseAreToldApart) {
  const auto expect = [](const std::string& bytes, std::vector<std::string> names) {
    EXPECT_THAT(OpenBytes(bytes).status(), Fails(absl::StatusCode::kInvalidArgument, std::move(names)));
  };
  expect("PK", {"safetensors file", "2 bytes"});
  expect("<!DOCTYPE html><html></html>", {"safetensors file", "28 bytes", "header"});
  expect("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n", {"Git LFS", "`git lfs"});
}

TEST(Safetensors, WithAMalformedHeaderAreRefused) {
  EXPECT_THAT(FileComplaint("[]", 0), Mentions({"header: ", "JSON object"}));
  EXPECT_THAT(FileComplaint("{\"a\":", 0), Mentions({"header: not JSON: ", "column 6"}));
  EXPECT_THAT(FileComplaint(R"({"a":1})", 0), Mentions({"tensor 'a': ", "dtype", "shape", "data_offsets"}));
  EXPECT_THAT(FileComplaint(R"({"a":{"dtype":"F32","shape":[]}})", 4),
              Mentions({"tensor 'a': ", "dtype", "shape", "data_offsets"}));
  const std::string deep(1'000'000, '[');
  EXPECT_THAT(FileComplaint(R"({"a":)" + deep + std::string(deep.size(), ']') + "}", 0),
              Mentions({"header: ", "nested"}));
  const std::string once = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_THAT(FileComplaint("{" + once + "," + once + "}", 4), Mentions({"'a'", "twice"}));
}

TEST(Safetensors, OfADTypeThatIsNotReadAreRefusedByName) {
  for (const std::string dtype : {"\"F8_E4M3\"", "\"I4\"", "\"f32\"", "\"\"", "32", "null", "[\"F32\"]"}) {
    EXPECT_THAT(FileComplaint(TensorHeader(dtype, "[1]", "[0,4]"), 4, absl::StatusCode::kUnimplemented),
                Mentions({"dtype " + dtype + " ", "F32"}));
  }
}

TEST(Safetensors, OutsideOfTheirFileAreRefused) {
  for (const std::string offsets : {"[0,5]", "[4,8]", "[4,0]", "[5,5]", "[0,18446744073709551615]",
                                    "[18446744073709551612,18446744073709551615]"}) {
    EXPECT_THAT(FileComplaint(TensorHeader("\"F32\"", "[1]", offsets), 4),
                Mentions({"tensor 'a': ", "data_offsets [", "4 bytes"}));
  }
  for (const std::string offsets : {"[0]", "[0,4,4]", "[-4,0]", "[0,4.0]", "[\"0\",4]", "{}", "4", "[0,1e1]"}) {
    EXPECT_THAT(FileComplaint(TensorHeader("\"F32\"", "[1]", offsets), 4),
                Mentions({"tensor 'a': ", "data_offsets", "two non-negative"}));
  }
}

TEST(Safetensors, OfAShapeThatDoesNotFitTheirBytesAreRefused) {
  EXPECT_THAT(FileComplaint(TensorHeader("\"F32\"", "[2]", "[0,4]"), 4), Mentions({"2 elements", "of 4 bytes"}));
  EXPECT_THAT(FileComplaint(TensorHeader("\"F16\"", "[1]", "[0,4]"), 4), Mentions({"1 elements", "of 2 bytes"}));
  EXPECT_THAT(FileComplaint(TensorHeader("\"F32\"", "[0]", "[0,4]"), 4), Mentions({"0 elements"}));
  // Products that wrap around to 1, to 0, and over the number of bytes only.
  for (const std::string shape :
       {"[4294967296,4294967296]", "[9223372036854775808,2]", "[18446744073709551615,18446744073709551615]",
        "[4611686018427387905,4]", "[0,4611686018427387904,4611686018427387904]", "[4611686018427387904]"}) {
    EXPECT_THAT(FileComplaint(TensorHeader("\"F32\"", shape, "[0,4]"), 4), Mentions({"shape", "overflows"})) << shape;
  }
  EXPECT_THAT(FileComplaint(TensorHeader("\"F32\"", "[-1]", "[0,4]"), 4), Mentions({"shape", "non-negative"}));
  EXPECT_THAT(FileComplaint(TensorHeader("\"F32\"", "[1.0]", "[0,4]"), 4), Mentions({"shape", "non-negative"}));
  EXPECT_THAT(FileComplaint(TensorHeader("\"F32\"", "1", "[0,4]"), 4), Mentions({"shape", "a list"}));
  EXPECT_THAT(FileComplaint(TensorHeader("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4),
              Mentions({"shape", "at most 8"}));
}

TEST(Safetensors, ThatShareOrLeaveBytesAreRefused) {
  const auto two = [](const std::string& first, const std::string& second) {
    return absl::StrCat(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)", first,
                        R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)", second, "}}");
  };
  EXPECT_TRUE(OpenBytes(FileOf(two("[8,16]", "[0,8]"), std::string(16, 'x'))).ok());
  EXPECT_THAT(FileComplaint(two("[0,8]", "[4,12]"), 12), Mentions({"overlap"}));
  EXPECT_THAT(FileComplaint(two("[0,8]", "[0,8]"), 8), Mentions({"overlap"}));
  EXPECT_THAT(FileComplaint(two("[0,8]", "[12,20]"), 20), Mentions({"bytes 8 to 12", "no tensor"}));
  EXPECT_THAT(FileComplaint(two("[4,12]", "[12,20]"), 20), Mentions({"bytes 0 to 4", "no tensor"}));
  EXPECT_THAT(FileComplaint(two("[0,8]", "[8,16]"), 17), Mentions({"bytes 16 to 17", "no tensor"}));
}

// Whatever is done to a file, it is refused, or its tensors lie inside it.
TEST(Safetensors, SurviveMutations) {
  const std::string original =
      SavedBytes({{"weight", {DType::kF32, {3, 2}}}, {"half", {DType::kF16, {5}}}, {"brain", {DType::kBF16, {2, 2}}}});
  Rng rng(1);
  int opened = 0;
  uint64_t sum = 0;
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
      const std::span<const std::byte> tensor = file->Bytes(name);
      EXPECT_EQ(tensor.size(), file->Info(name).bytes());
      EXPECT_LE(tensor.size(), bytes.size());
      for (const std::byte one : tensor) sum += static_cast<uint64_t>(one);  // reads every byte
    }
  }
  EXPECT_GT(sum, 0u);
  EXPECT_GT(opened, rounds / 20);
  EXPECT_LT(opened, rounds);
}

TEST(SafetensorsFile, OfAFileThatIsNotThereIsNotFound) {
  const auto file = SafetensorsFile::Open(Env::Real(), "/nonexistent/model.safetensors");
  EXPECT_THAT(file.status(), Fails(absl::StatusCode::kNotFound, {"/nonexistent/model.safetensors"}));
}

}  // namespace
}  // namespace tdock::model
