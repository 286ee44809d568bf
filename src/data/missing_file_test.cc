#include "data/missing_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"

namespace tdock::data {
namespace {

class MissingFileTest : public testing::Test {
 protected:
  MissingFileTest() {
    std::filesystem::remove_all(folder_);
    EXPECT_TRUE(env_.CreateFolders(folder_).ok());
    for (const char* name : {"train.jsonl", "trial.jsonl", "validation.parquet"}) {
      EXPECT_TRUE(WriteFileAtomically(env_, JoinPath(folder_, name), "").ok());
    }
  }
  std::string Message(const std::string& path) {
    const absl::Status status = MissingFile(env_, path);
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    return std::string(status.message());
  }

  Env& env_ = Env::Real();
  const std::string folder_ =
      testing::TempDir() + "/missing_file_" + testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(MissingFileTest, IsToldTheNearestNamesOfItsFolder) {
  EXPECT_EQ(Message(folder_ + "/trian.jsonl"),
            folder_ + "/trian.jsonl: there is no such file; did you mean train.jsonl or trial.jsonl?");
  EXPECT_EQ(Message(folder_ + "/validation.json"),
            folder_ + "/validation.json: there is no such file; did you mean validation.parquet?");
  EXPECT_EQ(Message(folder_ + "/x"), folder_ + "/x: there is no such file");
  EXPECT_EQ(Message(folder_ + "/no/x.json"),
            folder_ + "/no/x.json: there is no such file, nor the folder " + folder_ + "/no");
  EXPECT_EQ(Message(folder_ + "/" + std::string(1000, 'x') + ".json").substr(0, folder_.size() + 3), folder_ + "/xx");
}

TEST_F(MissingFileTest, ANameOfTheHubIsToldHowToDownloadIt) {
  EXPECT_EQ(Message("openai/gsm8k"),
            "openai/gsm8k: there is no such file. If it is a data set on the Hugging Face hub: nothing is downloaded; "
            "run `hf download openai/gsm8k --repo-type dataset --local-dir FOLDER`, then set data.train_files to "
            "FOLDER");
  EXPECT_EQ(Message("nowhere/train.jsonl"), "nowhere/train.jsonl: there is no such file, nor the folder nowhere");
}

}  // namespace
}  // namespace tdock::data
