#include "data/missing_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"

namespace tdock::data {
namespace {

using testing::HasSubstr;
using testing::Not;

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
  EXPECT_THAT(Message(folder_ + "/trian.jsonl"), Mentions({folder_ + "/trian.jsonl: ", "train.jsonl or trial.jsonl?"}));
  EXPECT_THAT(Message(folder_ + "/validation.json"),
              Mentions({folder_ + "/validation.json: ", " validation.parquet?"}));
  EXPECT_THAT(Message(folder_ + "/x"),
              testing::AllOf(Mentions({folder_ + "/x: "}), Not(HasSubstr("train.jsonl")), Not(HasSubstr("?"))));
  EXPECT_THAT(Message(folder_ + "/no/x.json"), Mentions({folder_ + "/no/x.json: ", "folder " + folder_ + "/no"}));
  EXPECT_EQ(Message(folder_ + "/" + std::string(1000, 'x') + ".json").substr(0, folder_.size() + 3), folder_ + "/xx");
}

TEST_F(MissingFileTest, ANameOfTheHubIsToldHowToDownloadIt) {
  EXPECT_THAT(Message("openai/gsm8k"),
              Mentions({"openai/gsm8k: ", "`hf download openai/gsm8k --repo-type dataset --local-dir FOLDER`",
                        "data.train_files"}));
  EXPECT_THAT(Message("nowhere/train.jsonl"),
              testing::AllOf(Mentions({"nowhere/train.jsonl: ", "folder nowhere"}), Not(HasSubstr("hf download"))));
}

}  // namespace
}  // namespace tdock::data
