#include "cli/prompt_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/testing/fails.h"
#include "text/char_tokenizer.h"
#include "text/json_tokenizer.h"
#include "text/testing/small_tokenizers.h"

namespace tdock::cli {
namespace {

using ::testing::ElementsAre;

// Prompts of the characters "ab :HumanAssistant".
class PromptFileTest : public testing::Test {
 protected:
  PromptFileTest() {
    EXPECT_TRUE(env_.RemoveAll(folder_).ok());
    EXPECT_TRUE(env_.CreateFolders(folder_).ok());
  }

  PromptEncoder Encoder(const std::string& chat_template = "", bool chat = false) {
    PromptArguments arguments{.chat = chat};
    arguments.data.chat_template = chat_template;
    auto encoder = PromptEncoder::Create(arguments, folder_, *tokenizer_);
    EXPECT_TRUE(encoder.ok()) << encoder.status();
    return *std::move(encoder);
  }

  // The file with these contents.
  PromptFile Open(const std::string& contents, const PromptEncoder& encoder) {
    EXPECT_TRUE(WriteFileAtomically(env_, rules_.path, contents).ok());
    return *PromptFile::Open(env_, rules_, encoder);
  }

  absl::StatusOr<PromptFileSummary> Check(const std::string& contents, const PromptEncoder& encoder) {
    return Open(contents, encoder).Check(stop_);
  }

  absl::Status Refused(const std::string& line, const std::string& chat_template = "") {
    return Check("{\"prompt\": \"a\"}\n\n" + line, Encoder(chat_template)).status();
  }

  Env& env_ = Env::Real();
  const std::string folder_ =
      testing::TempDir() + "/prompt_file_" + testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::unique_ptr<text::Tokenizer> tokenizer_ = *text::CharTokenizer::Create("ab :HumnAsit");
  PromptFileRules rules_{
      .path = JoinPath(folder_, "prompts.jsonl"),
      .check_length =
          [](int64_t tokens) { return tokens < 64 ? absl::OkStatus() : absl::InvalidArgumentError("it is too long"); },
      .taken_names = {"ids"},
      .skip_bad = false};
  std::atomic<bool> stop_ = false;
};

TEST_F(PromptFileTest, RefusesLinesThatCannotBeAnsweredWithTheirNumber) {
  const std::string long_prompt = "{\"prompt\": \"" + std::string(64, 'a') + "\"}";
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"{", {"not JSON"}},
      {"[1]", {"an object"}},
      {std::string(100, '[') + std::string(100, ']'), {"64 levels"}},
      {R"({"question": "a"})", {"no prompt", "\"prompt\"", "\"messages\""}},
      {R"({"prompt": 5})", {"\"prompt\" is ", "text", "turns"}},
      {R"({"prompt": []})", {"\"prompt\" is ", "text", "turns"}},
      {R"({"messages": "a"})", {"\"messages\" is ", "turns"}},
      {R"({"prompt": ""})", {"empty", "one token"}},
      {R"({"prompt": "ac"})", {"\"c\" (U+0063)"}},
      {R"({"prompt": "a", "messages": []})", {"both \"prompt\" and \"messages\""}},
      {R"({"prompt": "a", "ids": 5})", {"\"ids\"", "another name"}},
      {long_prompt, {"too long"}},
      {R"({"prompt": "a", "n": [18446744073709551616]})", {"18446744073709551616", "64 bits"}},
      {R"({"prompt": "a", "n": -9223372036854775809})", {"-9223372036854775809", "64 bits"}},
  };
  for (const auto& [line, names] : cases) {
    EXPECT_THAT(Refused(line), Fails(absl::StatusCode::kInvalidArgument, names)) << line;
    EXPECT_THAT(Refused(line).message(), Mentions({"prompts.jsonl:3: "}));
  }
  EXPECT_THAT(Refused(R"({"prompt": [{"role": "user", "content": "a"}]})").message(),
              Mentions({"prompts.jsonl:3: ", "tokenizer_config.json"}));
  EXPECT_THAT(Refused(R"({"messages": [{"role": "robot", "content": "a"}]})", "human_assistant"),
              Fails(absl::StatusCode::kInvalidArgument, {"prompts.jsonl:3: ", "\"messages\"", "turn 1", "\"robot\""}));
  EXPECT_THAT(Refused(R"({"messages": [{"role": "user", "content": "a"}], "tools": 5})", "human_assistant"),
              Fails(absl::StatusCode::kInvalidArgument, {"prompts.jsonl:3: ", "\"tools\"", "a list"}));
}

TEST_F(PromptFileTest, SkipsBadLinesIfAskedAndCountsThem) {
  rules_.skip_bad = true;
  const PromptEncoder encoder = Encoder();
  PromptFile file = Open("{\n{\"prompt\": \"a\"}\n \n5\n{\"prompt\": \"b\", \"n\": 1}", encoder);
  const auto summary = file.Check(stop_);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->lines, 5);
  EXPECT_EQ(summary->prompts, 2);
  EXPECT_EQ(summary->bad, 2);
  EXPECT_THAT(summary->first_bad, Fails(absl::StatusCode::kInvalidArgument, {"prompts.jsonl:1: ", "not JSON"}));
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

TEST_F(PromptFileTest, ScoresAnswersAndTexts) {
  rules_.scores = true;
  const PromptEncoder encoder = Encoder("human_assistant"), chat = Encoder("human_assistant", /*chat=*/true);
  // The text of a line's tokens, with those that are counted in brackets.
  const auto shown = [&](const std::string& line, const PromptEncoder& with) {
    PromptFile file = Open(line, with);
    EXPECT_EQ(file.Check(stop_)->bad, 0) << line;
    const FilePrompt prompt = **file.Next([](int64_t) { return true; });
    EXPECT_EQ(prompt.counted.size(), prompt.tokens.size());
    std::string text;
    for (size_t i = 0; i < prompt.tokens.size(); ++i) {
      const std::string token = *tokenizer_->Decode({&prompt.tokens[i], 1}, text::SpecialTokens::kKeep);
      text += prompt.counted[i] != 0 ? "[" + token + "]" : token;
    }
    return text;
  };
  EXPECT_EQ(shown(R"({"prompt": "ab", "completion": "ba"})", encoder), "ab[b][a]");
  EXPECT_EQ(shown(R"({"text": "aba"})", encoder), "a[b][a]");
  const std::string user = R"({"role": "user", "content": "a"})", answer = R"({"role": "assistant", "content": "b"})";
  const std::string reply = shown(R"({"messages": [)" + user + ", " + answer + "]}", encoder);
  EXPECT_TRUE(reply.starts_with(" Human: a Assistant:")) << reply;
  EXPECT_NE(reply.find("[b]"), std::string::npos) << reply;
  EXPECT_EQ(shown(R"({"prompt": [)" + user + R"(], "completion": "b"})", encoder), reply);
  EXPECT_EQ(shown(R"({"prompt": [)" + user + R"(], "completion": [)" + answer + "]}", encoder), reply);
  EXPECT_EQ(shown(R"({"prompt": "a", "completion": "b"})", chat), reply);
}

TEST_F(PromptFileTest, RefusesLinesThatCannotBeScoredWithTheirNumber) {
  rules_.scores = true;
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {R"({"question": "a"})", {"no prompt"}},
      {R"({"prompt": "a"})", {"no completion"}},
      {R"({"prompt": "a", "completion": 5})", {"\"completion\" is ", "text", "turns"}},
      {R"({"prompt": "a", "completion": [{"role": "assistant", "content": "b"}]})", {"no completion"}},
      {R"({"prompt": "a", "completion": ""})", {"no token"}},
      {R"({"prompt": "", "completion": "a"})", {"empty"}},
      {R"({"text": 5})", {"\"text\""}},
      {R"({"text": "a"})", {"1 tokens", "at least 2"}},
      {R"({"text": "ab", "prompt": "a"})", {"\"text\"", "\"prompt\""}},
      {R"({"text": "ab", "completion": "a"})", {"\"text\"", "\"completion\""}},
      {R"({"text": ")" + std::string(64, 'a') + R"("})", {"too long"}},
      {R"({"messages": [{"role": "user", "content": "a"}]})", {"a reply"}},
      {R"({"messages": [{"role": "user", "content": "a"}], "completion": [{"role": "robot", "content": "a"}]})",
       {"\"completion\"", "turn 1", "\"robot\""}},
  };
  for (const auto& [line, names] : cases) {
    const absl::Status refused = Check("{\"text\": \"ab\"}\n" + line, Encoder("human_assistant")).status();
    EXPECT_THAT(refused, Fails(absl::StatusCode::kInvalidArgument, names)) << line;
    EXPECT_THAT(refused.message(), Mentions({"prompts.jsonl:2: "}));
  }
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

TEST_F(PromptFileTest, WithChatATextHasTheToolsOfItsLine) {
  const std::string path = JoinPath(folder_, "chat_template.jinja");
  ASSERT_TRUE(WriteFileAtomically(env_, path,
                                  absl::string_view("{{ messages[0].content }}{% for tool in tools or [] %}{{ tool.n }}"
                                                    "{% endfor %}"))
                  .ok());
  const PromptEncoder chat = Encoder("", /*chat=*/true);
  const std::string asked = R"({"prompt": "a", "tools": [{"n": "b"}, {"n": "b"}]})";
  EXPECT_EQ(Check(asked, chat)->tokens, Check(R"({"prompt": "abb"})", chat)->tokens);
  EXPECT_EQ(Check(asked, chat)->conversations, 1);
  EXPECT_EQ(Check(asked, Encoder())->tokens, Check(R"({"prompt": "a"})", chat)->tokens);
  EXPECT_EQ(Check(asked, Encoder())->conversations, 0);
}

TEST_F(PromptFileTest, ATemplateThatCannotBeReadOnlyMattersToConversations) {
  const std::string path = JoinPath(folder_, "chat_template.jinja");
  ASSERT_TRUE(WriteFileAtomically(env_, path, absl::string_view("{% if %}")).ok());
  const PromptEncoder encoder = Encoder();
  EXPECT_TRUE(Check(R"({"prompt": "a"})", encoder).ok());
  EXPECT_THAT(Check(R"({"messages": [{"role": "user", "content": "a"}]})", encoder).status().message(),
              Mentions({"chat_template.jinja"}));
  EXPECT_FALSE(PromptEncoder::Create({.chat = true}, folder_, *tokenizer_).ok());
}

TEST_F(PromptFileTest, ReadsNoMoreThanWasChecked) {
  const PromptEncoder encoder = Encoder();
  const std::string line = "{\"prompt\": \"a\"}    \n";
  const auto all = [](int64_t) { return true; };
  const auto change = [&](const std::string& contents) {
    auto into = env_.OpenForWriting(rules_.path, WriteMode::kTruncate);
    ASSERT_TRUE(into.ok() && (*into)->Append(contents).ok() && (*into)->Close().ok());
  };
  PromptFile longer = Open(line, encoder);
  ASSERT_TRUE(longer.Check(stop_).ok());
  change(line + line);
  EXPECT_EQ((*longer.Next(all))->line, 1);
  EXPECT_EQ(*longer.Next(all), std::nullopt);
  PromptFile other = Open(line + line, encoder);
  ASSERT_TRUE(other.Check(stop_).ok());
  change("\n" + line + line);
  const auto refused = [&](int64_t wanted) {
    return other.Next([&](int64_t number) {
      EXPECT_LE(number, 2);
      return number >= wanted;
    });
  };
  EXPECT_THAT(refused(3).status(),
              Fails(absl::StatusCode::kFailedPrecondition, {"prompts.jsonl", "changed", "2 lines"}));
}

TEST_F(PromptFileTest, TheCheckCanBeStopped) {
  stop_ = true;
  EXPECT_TRUE(absl::IsCancelled(Check("{\"prompt\": \"a\"}", Encoder()).status()));
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
  rules_.check_length = [](int64_t) { return absl::OkStatus(); };
  std::string contents;
  for (size_t bytes : {3'000'000, 10, 1'048'576 - 200})
    contents += "{\"prompt\": \"" + std::string(bytes, 'a') + "\"}\n";
  PromptFile file = Open(contents, encoder);
  EXPECT_EQ(file.Check(stop_)->prompts, 3);
  const auto all = [](int64_t) { return true; };
  for (size_t bytes : {3'000'000, 10, 1'048'576 - 200}) EXPECT_EQ((*file.Next(all))->tokens.size(), bytes);
  EXPECT_THAT(Check(std::string((16 << 20) + 1, ' '), encoder).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"prompts.jsonl:1: ", "16777216 bytes"}));
}

}  // namespace
}  // namespace tdock::cli
