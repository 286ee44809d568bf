#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/base/testing/fails.h"
#include "text/testing/small_tokenizers.h"
#include "text/tokenizer.h"

namespace tdock::text {
namespace {

using small::SmallByteLevel;
using small::SmallSentencePiece;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Files = std::map<std::string, std::string>;  // contents by name

class LoadTokenizerTest : public ::testing::Test {
 protected:
  LoadTokenizerTest() : root_(::testing::TempDir() + "/load_tokenizer_test_XXXXXX") {
    EXPECT_NE(::mkdtemp(root_.data()), nullptr);
  }
  ~LoadTokenizerTest() override { std::filesystem::remove_all(root_); }

  std::string Folder(const Files& files) {
    const std::string folder = JoinPath(root_, std::to_string(made_++));
    EXPECT_EQ(Env::Real().CreateFolders(folder), absl::OkStatus());
    for (const auto& [name, contents] : files) {
      EXPECT_EQ(WriteFileAtomically(Env::Real(), JoinPath(folder, name), contents), absl::OkStatus());
    }
    return folder;
  }

  static Files FilesIn(const std::string& folder) {
    Files files;
    const std::vector<std::string> names = Env::Real().List(folder).value();
    for (const std::string& name : names) {
      files[name] = Env::Real().ReadFile(JoinPath(folder, name)).value();
    }
    return files;
  }

  // The folder into which what was loaded from `folder` is saved.
  std::string Resaved(const std::string& folder) {
    const std::string other = JoinPath(root_, std::to_string(made_++));
    const auto tokenizer = LoadTokenizer(Env::Real(), folder);
    EXPECT_EQ(tokenizer.status(), absl::OkStatus());
    EXPECT_EQ((*tokenizer)->Save(Env::Real(), other), absl::OkStatus());
    return other;
  }

  std::string Refusal(const std::string& folder) {
    return std::string(LoadTokenizer(Env::Real(), folder).status().message());
  }
  std::string Refusal(const Files& files) { return Refusal(Folder(files)); }

  std::string root_;
  int made_ = 0;
};

TEST_F(LoadTokenizerTest, ReadsATokenizerJsonAndSavesItsFiles) {
  const Files files = {{"tokenizer.json", SmallByteLevel().dump()},
                       {"tokenizer_config.json", R"({"eos_token": {"content": "<|end|>"}, "pad_token": null})"},
                       {"special_tokens_map.json", R"({"eos_token": "<|end|>"})"}};
  const std::string folder = Folder(files);
  const std::string resaved = Resaved(folder);
  EXPECT_EQ(FilesIn(resaved), files);
  for (const std::string& path : {folder, resaved}) {
    const auto tokenizer = LoadTokenizer(Env::Real(), path).value();
    EXPECT_THAT(tokenizer->Encode("hello h").value(), ElementsAre(259, 260));
    EXPECT_EQ(tokenizer->vocab_size(), 262);
    EXPECT_EQ(tokenizer->eos_id(), 261);
    EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
    EXPECT_EQ(tokenizer->pad_id(), std::nullopt);
  }
}

TEST_F(LoadTokenizerTest, ReadsATokenizerModelAndSavesItsFiles) {
  const Files files = {{"tokenizer.model", SmallSentencePiece()},
                       {"tokenizer_config.json", R"({"add_bos_token": true, "pad_token": "<unk>"})"}};
  const std::string folder = Folder(files);
  const std::string resaved = Resaved(folder);
  EXPECT_EQ(FilesIn(resaved), files);
  for (const std::string& path : {folder, resaved}) {
    const auto tokenizer = LoadTokenizer(Env::Real(), path).value();
    EXPECT_THAT(tokenizer->Encode("ab", {.add_special_tokens = true}).value(), ElementsAre(1, 5));
    EXPECT_EQ(tokenizer->eos_id(), 2) << "as the model says";
    EXPECT_EQ(tokenizer->pad_id(), 0) << "as tokenizer_config.json says";
  }
}

TEST_F(LoadTokenizerTest, NeedsNoFileBesideTheTokenizers) {
  EXPECT_EQ(LoadTokenizer(Env::Real(), Folder({{"tokenizer.json", SmallByteLevel().dump()}})).value()->eos_id(),
            std::nullopt);
  EXPECT_EQ(LoadTokenizer(Env::Real(), Folder({{"tokenizer.model", SmallSentencePiece()}})).value()->eos_id(), 2);
}

TEST_F(LoadTokenizerTest, ReadsTheSameWithAndWithoutAConfiguration) {
  small::Json json = small::SmallByteFallback();
  json["model"]["merges"] = small::Json::array();
  json["normalizer"] = json["post_processor"] = nullptr;
  json["decoder"] = {{"type", "Fuse"}};
  json["added_tokens"].push_back(small::AddedTokenJson(263, "<tool>", false));
  for (const Files& beside : {Files{}, Files{{"tokenizer_config.json", "{}"}}}) {
    Files files = beside;
    files["tokenizer.json"] = json.dump();
    const auto tokenizer = LoadTokenizer(Env::Real(), Folder(files)).value();
    EXPECT_THAT(tokenizer->Encode("ab<tool>").value(), ElementsAre(259, 260, 263));
    EXPECT_EQ(tokenizer->eos_id(), std::nullopt);
  }
}

TEST_F(LoadTokenizerTest, ReadsTheMapOfSpecialTokens) {
  const auto eos = [&](const char* config, const char* map) {
    const Files files = {{"tokenizer.json", SmallByteLevel().dump()},
                         {"tokenizer_config.json", config},
                         {"special_tokens_map.json", map}};
    return LoadTokenizer(Env::Real(), Folder(files)).value()->eos_id();
  };
  EXPECT_EQ(eos("{}", R"({"eos_token": "<|end|>"})"), 261);
  EXPECT_EQ(eos("{}", R"({"eos_token": {"content": "<|end|>", "lstrip": false}})"), 261);
  // Which of them counts where they contradict each other is as in transformers.
  EXPECT_EQ(eos(R"({"eos_token": "he"})", R"({"eos_token": "<|end|>"})"), 261);
  const char* config = R"({"eos_token": "he", "added_tokens_decoder": {"261": {"content": "<|end|>"}}})";
  EXPECT_EQ(eos(config, R"({"eos_token": "<|end|>"})"), 256);
}

TEST_F(LoadTokenizerTest, RefusesTokensThatOnlyTheConfigurationNames) {
  const auto beside = [&](const char* config, const char* map = "{}") {
    return LoadTokenizer(Env::Real(), Folder({{"tokenizer.json", SmallByteLevel().dump()},
                                              {"tokenizer_config.json", config},
                                              {"special_tokens_map.json", map}}))
        .status();
  };
  EXPECT_EQ(beside(R"({"added_tokens_decoder": {"261": {"content": "<|end|>", "special": true}},
                       "additional_special_tokens": ["<|end|>"], "extra_special_tokens": {"end_token": "<|end|>"}})"),
            absl::OkStatus());
  const struct {
    const char* config;
    std::vector<std::string> names;
  } changes[] = {
      {R"({"added_tokens_decoder": {"262": {"content": "<x>"}}})", {"\"added_tokens_decoder\"", "\"<x>\"", "id 262"}},
      {R"({"added_tokens_decoder": {"262": {"content": "<|end|>"}}})", {"\"<|end|>\"", "id 262", "id 261"}},
      {R"({"additional_special_tokens": [{"content": "<x>"}]})", {"\"additional_special_tokens\"", "\"<x>\""}},
      {R"({"extra_special_tokens": {"image_token": "<x>"}})", {"\"extra_special_tokens\"", "\"<x>\""}},
      {R"({"unk_token": "<x>"})", {"\"unk_token\"", "\"<x>\""}},
  };
  for (const auto& [config, names] : changes) {
    EXPECT_THAT(beside(config), Fails(absl::StatusCode::kUnimplemented, names)) << config;
  }
  EXPECT_THAT(beside("{}", R"({"mask_token": "<x>"})"),
              Fails(absl::StatusCode::kUnimplemented, {"special_tokens_map.json: \"mask_token\"", "\"<x>\""}));
  EXPECT_THAT(beside("{}", R"({"eos_token": "<x>"})"),
              Fails(absl::StatusCode::kUnimplemented, {"special_tokens_map.json: \"eos_token\"", "\"<x>\""}));
  EXPECT_THAT(beside(R"({"added_tokens_decoder": {"a": {"content": "<x>"}}})"),
              Fails(absl::StatusCode::kInvalidArgument, {"\"added_tokens_decoder\"", "ids"}));
}

TEST_F(LoadTokenizerTest, TakesWhatAConfigurationRepeatsOfATokenizerModel) {
  const char* config = R"({"added_tokens_decoder": {"0": {"content": "<unk>"}, "1": {"content": "<s>"},
                                                    "2": {"content": "</s>"}}, "unk_token": "<unk>"})";
  const std::string folder = Folder({{"tokenizer.model", SmallSentencePiece()}, {"tokenizer_config.json", config}});
  EXPECT_EQ(LoadTokenizer(Env::Real(), folder).value()->eos_id(), 2);
}

TEST_F(LoadTokenizerTest, PrefersTheTokenizerJson) {
  const std::string folder = Folder({{"tokenizer.json", SmallByteLevel().dump()}, {"tokenizer.model", "not one"}});
  EXPECT_EQ(LoadTokenizer(Env::Real(), folder).value()->vocab_size(), 262);
}

TEST_F(LoadTokenizerTest, NamesTheFolderAndTheFileThatCannotBeRead) {
  const std::string empty = Folder({});
  EXPECT_THAT(LoadTokenizer(Env::Real(), empty).status(),
              Fails(absl::StatusCode::kNotFound, {empty + "/tokenizer.json", empty + "/tokenizer.model"}));

  EXPECT_THAT(LoadTokenizer(Env::Real(), empty + "/none").status(),
              Fails(absl::StatusCode::kNotFound, {"folder " + empty + "/none"}));
  EXPECT_THAT(Refusal(empty + "/none"), ::testing::Not(HasSubstr("hf download")));
  EXPECT_THAT(LoadTokenizer(Env::Real(), "owner/Model-0.5B").status(),
              Fails(absl::StatusCode::kNotFound,
                    {"folder owner/Model-0.5B", "`hf download owner/Model-0.5B --local-dir FOLDER`"}));

  const std::string whole = SmallByteLevel().dump();
  const std::string damaged = Folder({{"tokenizer.json", whole.substr(0, whole.size() - 1)}});
  EXPECT_THAT(Refusal(damaged), StartsWith(damaged + ": tokenizer.json: "));
  EXPECT_THAT(Refusal({{"tokenizer.json", whole}, {"tokenizer_config.json", "{"}}),
              HasSubstr(": tokenizer_config.json: "));
  EXPECT_THAT(Refusal({{"tokenizer.json", whole}, {"tokenizer_config.json", R"({"eos_token": "</s>"})"}}),
              Mentions({"tokenizer_config.json: \"eos_token\"", "\"</s>\""}));
  const std::string model = SmallSentencePiece();
  EXPECT_THAT(Refusal({{"tokenizer.model", model.substr(0, model.size() - 1)}}), HasSubstr(": tokenizer.model: "));
}

TEST_F(LoadTokenizerTest, RefusesWhatItDoesNotImplementByName) {
  small::Json other = SmallByteLevel();
  other["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
  EXPECT_THAT(LoadTokenizer(Env::Real(), Folder({{"tokenizer.json", other.dump()}})).status(),
              Fails(absl::StatusCode::kUnimplemented, {"UnicodeScripts"}));
  const std::string added = Folder({{"tokenizer.model", SmallSentencePiece()}, {"added_tokens.json", "{}"}});
  EXPECT_THAT(
      LoadTokenizer(Env::Real(), added).status(),
      Fails(absl::StatusCode::kUnimplemented, {added + "/added_tokens.json", "tokenizer.model", "tokenizer.json"}));
}

TEST_F(LoadTokenizerTest, RefusesAHugeFileUnread) {
  const std::string folder = Folder({{"tokenizer.json", ""}});
  ASSERT_EQ(::truncate((folder + "/tokenizer.json").c_str(), off_t{1} << 40), 0);  // no block of it is on the disk
  EXPECT_THAT(Refusal(folder), Mentions({"/tokenizer.json: ", "1099511627776 bytes", "at most 67108864"}));
}

}  // namespace
}  // namespace tdock::text
