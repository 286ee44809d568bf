#include "inference/protocol/weights_ask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace tdock::inference {
namespace {

using testing::ElementsAre;

TEST(ReadWeights, TakesVersionsThatEveryReaderOfJsonHasExactly) {
  const auto read = [](absl::string_view version) {
    return ReadWeights(absl::StrCat(R"({"model_path": "m", "weight_version": )", version, "}"));
  };
  EXPECT_EQ(std::get<WeightsAsk>(read("9007199254740991")).version, kMostVersion);
  EXPECT_EQ(std::get<WeightsAsk>(read("\"9007199254740991\"")).version, kMostVersion);
  for (const char* const version : {"9007199254740992", "\"9007199254740992\"", "9223372036854775807", "-1"}) {
    EXPECT_EQ(std::get<Problem>(read(version)).param, "weight_version") << version;
  }
}

TEST(ReadWeights, TakesVersionsAsVerlWritesThem) {
  EXPECT_EQ(std::get<WeightsAsk>(ReadWeights(R"({"model_path": "d", "weight_version": "12"})")).version, 12);
  EXPECT_EQ(std::get<WeightsAsk>(ReadWeights(R"({"model_path": "d"})")).version, std::nullopt);
  EXPECT_TRUE(std::holds_alternative<Problem>(ReadWeights(R"({"model_path": "d", "weight_version": "x"})")));
  EXPECT_TRUE(std::holds_alternative<Problem>(ReadWeights("{}")));
}

TEST(ReadWeights, ReadsWhatAProgramWillSend) {
  const auto read = ReadWeights(R"({"tensors": [{"name": "a.weight", "dtype": "BF16", "shape": [2, 3]},
      {"name": "b", "dtype": "F32", "shape": []}], "weight_version": 3, "flush_cache": false})");
  const auto& ask = std::get<WeightsAsk>(read);
  ASSERT_EQ(ask.tensors.size(), 2U);
  EXPECT_EQ(ask.tensors[0].name, "a.weight");
  EXPECT_EQ(ask.tensors[0].dtype, DType::kBF16);
  EXPECT_THAT(ask.tensors[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(ask.version, 3);
  EXPECT_FALSE(ask.flush_cache);
  EXPECT_TRUE(std::get<WeightsAsk>(ReadWeights(R"({"model_path": "d"})")).flush_cache);
}

TEST(ReadWeights, NamesWhatIsWrongWithATensor) {
  const auto refused = [](absl::string_view tensor) {
    return std::get<Problem>(ReadWeights(absl::StrCat(R"({"tensors": [)", tensor, "]}"))).param;
  };
  EXPECT_EQ(refused("1"), "tensors[0]");
  EXPECT_EQ(refused(R"({"dtype": "F32", "shape": [1]})"), "tensors[0].name");
  EXPECT_EQ(refused(absl::StrCat(R"({"name": ")", std::string(1025, 'n'), R"(", "dtype": "F32", "shape": [1]})")),
            "tensors[0].name");
  for (const char* const dtype : {"\"F64\"", "\"f32\"", "1", "null", "[\"F32\"]"}) {
    EXPECT_EQ(refused(absl::StrCat(R"({"name": "a", "shape": [1], "dtype": )", dtype, "}")), "tensors[0].dtype");
  }
  for (const char* const shape :
       {"1", "null", "[-1]", "[1.5]", "[\"1\"]", "[18446744073709551615]", "[[1]]", "[1,1,1,1,1,1,1,1,1]"}) {
    EXPECT_EQ(refused(absl::StrCat(R"({"name": "a", "dtype": "F32", "shape": )", shape, "}")), "tensors[0].shape");
  }
  EXPECT_EQ(refused(R"({"name": "a", "dtype": "F32", "shape": [1], "data": 1})"), "tensors[0].data");
  EXPECT_EQ(refused(""), "tensors");
  EXPECT_EQ(std::get<Problem>(ReadWeights(R"({"tensors": {}})")).param, "tensors");
  EXPECT_EQ(std::get<Problem>(ReadWeights(R"({"model_path": "d", "tensors": [{"name": "a", "dtype": "F32",
      "shape": [1]}]})"))
                .param,
            "tensors");
  AskLimits limits;
  limits.max_tensors = 1;
  const char* const two = R"({"tensors": [{"name": "a", "dtype": "F32", "shape": [1]}, {}]})";
  EXPECT_EQ(std::get<Problem>(ReadWeights(two, limits)).param, "tensors");
}

TEST(ReadUpload, ReadsAPieceAndAnEnd) {
  const auto piece = std::get<UploadAsk>(ReadUpload("upload=a1&offset=18446744073709551615"));
  EXPECT_EQ(piece.upload, "a1");
  EXPECT_EQ(piece.offset, ~uint64_t{0});
  EXPECT_EQ(piece.checksum, std::nullopt);
  const auto end = std::get<UploadAsk>(ReadUpload("checksum=00000000000000fF&flush_cache=false&upload=a1"));
  EXPECT_EQ(end.checksum, 255U);
  EXPECT_EQ(end.offset, std::nullopt);
  EXPECT_EQ(end.flush_cache, false);
}

TEST(ReadUpload, RefusesEverythingElse) {
  for (const char* const query :
       {"", "upload=a", "upload=&offset=1", "offset=1", "upload=a&offset=-1", "upload=a&offset=+1",
        "upload=a&offset= 1", "upload=a&offset=", "upload=a&offset=18446744073709551616",
        "upload=a&offset=1&checksum=0123456789abcdef", "upload=a&checksum=0x23456789abcdef", "upload=a&checksum=123",
        "upload=a&offset=1&offset=1", "upload=a&upload=a&offset=1", "upload=a&offset=1&x=1", "upload=a&offset=1&",
        "upload=a&offset=1&flush_cache=true", "upload=a&checksum=0123456789abcdef&flush_cache=1"}) {
    EXPECT_TRUE(std::holds_alternative<Problem>(ReadUpload(query))) << query;
  }
}

}  // namespace
}  // namespace tdock::inference
