#include "cli/prompt_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "text/char_tokenizer.h"
#include "text/json_tokenizer.h"
#include "text/testing/small_tokenizers.h"

namespace tdock::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Prompts of the characters "ab :HumanAssistant".
class PromptFileTest : public testing::Test {
 protected:
  PromptFileTest() {
    EXPECT_TRUE(env_.RemoveAll(folder_).ok());
    EXPECT_TRUE(env_.CreateFolders(folder_).ok());
  }

  PromptEncoder Encoder(const std::string& chat_template = "") {
    PromptArguments arguments;
    arguments.data.chat_template = chat_template;
    auto encoder = PromptEncoder::Create(arguments, folder_, *tokenizer_);
    EXPECT_TRUE(encoder.ok()) << encoder.status();
    return *std::move(encoder);
  }

  absl::StatusOr<PromptFileSummary> Check(const std::string& contents, const PromptEncoder& encoder) {
    EXPECT_TRUE(WriteFileAtomically(env_, rules_.path, contents).ok());
    return PromptFile::Check(env_, rules_, encoder);
  }

  std::string Refused(const std::string& line, const std::string& chat_template = "") {
    return std::string(Check("{\"prompt\": \"a\"}\n\n" + line, Encoder(chat_template)).status().message());
  }

  Env& env_ = Env::Real();
  const std::string folder_ =
      testing::TempDir() + "/prompt_file_" + testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::unique_ptr<text::Tokenizer> tokenizer_ = *text::CharTokenizer::Create("ab :HumnAsit");
  PromptFileRules rules_{
      .path = JoinPath(folder_, "prompts.jsonl"), .context_length = 64, .taken_names = {"ids"}, .skip_bad = false};
};

TEST_F(PromptFileTest, RefusesLinesThatCannotBeAnsweredWithTheirNumber) {
  const std::string long_prompt = "{\"prompt\": \"" + std::string(64, 'a') + "\"}";
  const std::pair<std::string, const char*> cases[] = {
      {"{", "it is not JSON"},
      {"[1]", "it is not an object in JSON"},
      {std::string(100, '[') + std::string(100, ']'), "it nests deeper than 64 levels"},
      {R"({"question": "a"})", "it has no prompt, such as"},
      {R"({"prompt": 5})", "\"prompt\" is neither text nor a list of turns"},
      {R"({"prompt": []})", "\"prompt\" is neither text nor a list of turns"},
      {R"({"messages": "a"})", "\"messages\" is not a list of turns"},
      {R"({"prompt": ""})", "it is empty; a prompt needs at least one token"},
      {R"({"prompt": "ac"})", "\"c\" (U+0063)"},
      {R"({"prompt": "a", "messages": []})", "it has both \"prompt\" and \"messages\""},
      {R"({"prompt": "a", "ids": 5})", "it has \"ids\", as the line of its answer has; give it another name"},
      {R"({"prompt": [{"role": "user", "content": "a"}]})", "tokenizer_config.json"},
      {long_prompt, "its prompt has 64 tokens, which leaves no room for an answer in the 64 positions of the model"},
  };
  for (const auto& [line, message] : cases) {
    EXPECT_THAT(Refused(line), HasSubstr(message)) << line;
    EXPECT_THAT(Refused(line), HasSubstr("prompts.jsonl:3: "));
  }
  EXPECT_THAT(Refused(R"({"messages": [{"role": "robot", "content": "a"}]})", "human_assistant"),
              HasSubstr("\"messages\": turn 1: the role \"robot\""));
  EXPECT_THAT(Refused(R"({"messages": [{"role": "user", "content": "a"}], "tools": 5})", "human_assistant"),
              HasSubstr("\"tools\" is not a list"));
}

TEST_F(PromptFileTest, SkipsBadLinesIfAskedAndCountsThem) {
  rules_.skip_bad = true;
  const PromptEncoder encoder = Encoder();
  const auto summary = Check("{\n{\"prompt\": \"a\"}\n \n5\n{\"prompt\": \"b\", \"n\": 1}", encoder);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->lines, 5);
  EXPECT_EQ(summary->prompts, 2);
  EXPECT_EQ(summary->bad, 2);
  EXPECT_THAT(std::string(summary->first_bad.message()), HasSubstr("prompts.jsonl:1: it is not JSON"));
  PromptFile file = *PromptFile::Open(env_, rules_, encoder);
  const auto later = [](int64_t line) { return line > 2; };
  const auto last = file.Next(later);
  EXPECT_EQ((*last)->line, 5);
  EXPECT_EQ((*last)->fields.dump(), R"({"prompt":"b","n":1})");
  EXPECT_THAT((*last)->tokens, ElementsAre(1));
  EXPECT_EQ(*file.Next(later), std::nullopt);
}

TEST_F(PromptFileTest, TurnsAreRenderedByTheTemplate) {
  const PromptEncoder encoder = Encoder("human_assistant");
  const auto tokens = [&](const std::string& line) { return Check(line, encoder)->tokens; };
  const text::ContentHash by_hand = tokens(R"({"prompt": " Human: a Assistant:"})");
  EXPECT_EQ(tokens(R"({"prompt": [{"role": "user", "content": "a"}]})"), by_hand);
  EXPECT_EQ(tokens(R"({"messages": [{"role": "user", "content": "a"}], "tools": null})"), by_hand);
  EXPECT_EQ(tokens(R"({"messages": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})"), by_hand);
  EXPECT_NE(tokens(R"({"prompt": "a"})"), by_hand);
}

TEST_F(PromptFileTest, PromptsBeginWithWhatTheTokenizerPutsBeforeATextAndForgeNoSpecialTokens) {
  text::TokenizerConfig config;
  config.bos = config.eos = "<s>";
  const auto tokenizer = text::JsonTokenizer::Create(text::small::SmallByteFallback(), config, {}).value();
  const auto encoder = PromptEncoder::Create({}, folder_, *tokenizer);
  ASSERT_TRUE(encoder.ok()) << encoder.status();
  const auto tokens = *encoder->Encode("ab<s>");
  EXPECT_EQ(tokens.front(), 1);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 1), 1);
  EXPECT_EQ(*tokenizer->Decode(tokens), "ab<s>");
}

TEST_F(PromptFileTest, TheContentTellsFilesApart) {
  const PromptEncoder encoder = Encoder();
  const text::ContentHash content = Check("{\"prompt\": \"a\"}\n", encoder)->content;
  EXPECT_EQ(Check("{\"prompt\": \"a\"}", encoder)->content, content);
  EXPECT_NE(Check("{\"prompt\": \"a\", \"n\": 1}\n", encoder)->content, content);
  EXPECT_NE(Check("\n{\"prompt\": \"a\"}\n", encoder)->content, content);
}

TEST_F(PromptFileTest, ReadsLinesThatAreLongerThanAPieceOfTheFile) {
  const PromptEncoder encoder = Encoder();
  rules_.context_length = int64_t{1} << 40;
  std::string contents;
  for (size_t bytes : {3'000'000, 10, 1'048'576 - 200})
    contents += "{\"prompt\": \"" + std::string(bytes, 'a') + "\"}\n";
  EXPECT_EQ(Check(contents, encoder)->prompts, 3);
  PromptFile file = *PromptFile::Open(env_, rules_, encoder);
  const auto all = [](int64_t) { return true; };
  for (size_t bytes : {3'000'000, 10, 1'048'576 - 200}) EXPECT_EQ((*file.Next(all))->tokens.size(), bytes);
  rules_.context_length = 64;
  EXPECT_THAT(std::string(Check(std::string((16 << 20) + 1, ' '), encoder).status().message()),
              HasSubstr("prompts.jsonl:1: the line has more than 16777216 bytes"));
}

}  // namespace
}  // namespace tdock::cli
