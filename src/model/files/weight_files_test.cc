#include "model/files/weight_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/testing/fails.h"
#include "model/files/testing/files.h"
#include "nlohmann/json.hpp"

namespace tdock::model {
namespace {

using testing::ElementsAre;

class WeightFilesTest : public testing::Test {
 protected:
  absl::Status Write(uint64_t max_file_bytes = UINT64_MAX) {
    const auto bytes_of = [&](size_t) -> absl::StatusOr<std::span<const std::byte>> { return bytes_; };
    return WriteWeightFiles(env_, folder_.path(), weights_, max_file_bytes, bytes_of);
  }
  absl::Status Open() { return WeightFiles::Open(env_, folder_.path()).status(); }
  std::string Complaint() {
    const absl::Status status = Open();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  Env& env_ = Env::Real();
  const TestFolder folder_;
  const std::vector<NamedInfo> weights_ = {
      {"embed", {DType::kF32, {2, 2}}}, {"norm", {DType::kF32, {4}}}, {"head", {DType::kBF16, {8}}}};
  const std::vector<std::byte> bytes_ = std::vector<std::byte>(16);
};

TEST_F(WeightFilesTest, InSeveralFilesAreReadByTheirIndex) {
  ASSERT_TRUE(Write().ok());
  const std::string part = "model-00001-of-00002.safetensors";
  ASSERT_TRUE(env_.Rename(folder_.Path("model.safetensors"), folder_.Path(part)).ok());
  EXPECT_EQ(Open().code(), absl::StatusCode::kNotFound);
  const auto file = SafetensorsFile::Open(env_, folder_.Path(part));
  nlohmann::json index;
  for (const std::string& name : file->names()) index["weight_map"][name] = part;
  const auto write = [&] {
    return WriteFileAtomically(env_, folder_.Path("model.safetensors.index.json"), index.dump());
  };
  ASSERT_TRUE(write().ok());
  const auto files = WeightFiles::Open(env_, folder_.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(files->names(), ElementsAre("embed", "head", "norm"));
  EXPECT_EQ(files->Find("norm")->Info("norm"), weights_[1].info);
  EXPECT_EQ(files->Find("bias"), nullptr);

  index["weight_map"]["norm"] = "model-00002-of-00002.safetensors";
  ASSERT_TRUE(write().ok());
  EXPECT_THAT(Open(), Fails(absl::StatusCode::kNotFound, {"model-00002-of-00002.safetensors"}));
  index["weight_map"]["norm"] = part;
  index["weight_map"]["other"] = part;
  ASSERT_TRUE(write().ok());
  EXPECT_THAT(Complaint(), Mentions({"model.safetensors.index.json: ", "weight 'other'", part}));
  for (const char* outside : {"../", "/etc/passwd", "..", "a/b"}) {
    index["weight_map"]["norm"] = outside;
    ASSERT_TRUE(write().ok());
    EXPECT_THAT(Complaint(), Mentions({"model.safetensors.index.json: ", "weight 'norm'", outside}));
  }
  for (const char* text : {"{}", "[]", R"({"weight_map": []})", R"({"weight_map": {}})", "{"}) {
    ASSERT_TRUE(WriteFileAtomically(env_, folder_.Path("model.safetensors.index.json"), text).ok());
    EXPECT_EQ(Open().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST_F(WeightFilesTest, AreSplitWhereTheyAreTooLarge) {
  ASSERT_TRUE(Write(/*max_file_bytes=*/40).ok());
  EXPECT_THAT(*env_.List(folder_.path()),
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model.safetensors.index.json"));
  const auto files = WeightFiles::Open(env_, folder_.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->Find("embed"), files->Find("norm"));
  EXPECT_NE(files->Find("norm"), files->Find("head"));
}

TEST_F(WeightFilesTest, OfOthersStayAndWhatKilledSavesLeftGoes) {
  for (const char* name : {"model-ema.safetensors", "model-1-of-2.safetensors", "notes.txt",
                           "model-00006-of-00023.safetensors", "model-00006-of-00023.safetensors.writing-9274"}) {
    ASSERT_TRUE(WriteFileAtomically(env_, folder_.Path(name), "bytes").ok());
  }
  ASSERT_TRUE(Write().ok());
  EXPECT_THAT(*env_.List(folder_.path()),
              ElementsAre("model-1-of-2.safetensors", "model-ema.safetensors", "model.safetensors", "notes.txt"));
}

}  // namespace
}  // namespace tdock::model
