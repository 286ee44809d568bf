#include "trainer/reward/external/code_tests.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/json_text.h"
#include "core/base/status.h"

namespace tdock::reward {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostTests = 1000;
constexpr int kDeepest = 64;

// The name of what stands for an integer of more than 64 bits, as in code_driver.py.
constexpr char kBig[] = "\0int";
const std::string& BigName() {
  static const std::string name(kBig, 4);
  return name;
}

// JSON with such objects in place of the integers that would be rounded.
std::string MarkBigIntegers(absl::string_view json) {
  std::string marked;
  bool in_text = false;
  for (size_t i = 0; i < json.size();) {
    const size_t begin = i;
    if (in_text) {
      in_text = json[i] != '"';
      i += json[i] == '\\' ? 2 : 1;
    } else if (json[i] == '-' || absl::ascii_isdigit(static_cast<unsigned char>(json[i]))) {
      while (i < json.size() &&
             (absl::ascii_isalnum(static_cast<unsigned char>(json[i])) || absl::StrContains("+-.", json[i]))) {
        ++i;
      }
      const absl::string_view number = json.substr(begin, i - begin);
      const bool integer = number.find_first_not_of("0123456789", number[0] == '-' ? 1 : 0) == absl::string_view::npos;
      int64_t with_sign = 0;
      uint64_t without = 0;
      if (number.size() > 18 && integer && !absl::SimpleAtoi(number, &with_sign) &&
          !absl::SimpleAtoi(number, &without)) {
        absl::StrAppend(&marked, "{\"\\u0000int\":\"", number, "\"}");
        continue;
      }
    } else {
      in_text = json[i] == '"';
      ++i;
    }
    absl::StrAppend(&marked, json.substr(begin, i - begin));
  }
  return marked;
}

// The digits of such an integer; null for other values.
const std::string* BigDigits(const Json& value) {
  if (!value.is_object() || value.size() != 1) return nullptr;
  const auto digits = value.find(BigName());
  return digits != value.end() && digits->is_string() ? digits->get_ptr<const std::string*>() : nullptr;
}

// A JSON value; nothing if it is none.
std::optional<Json> ParseValue(absl::string_view text) {
  const auto wrapped = ParseJsonObject(absl::StrCat("{\"value\":", MarkBigIntegers(text), "}"), kDeepest);
  if (!wrapped.ok() || wrapped->size() != 1) return std::nullopt;
  return wrapped->at("value");
}

std::string TextOf(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (const std::string* const digits = BigDigits(value)) return *digits;
  if (!value.is_array()) return JsonText(value);
  std::string text;  // some data sets have a list of lines
  for (const Json& line : value) absl::StrAppend(&text, text.empty() ? "" : "\n", TextOf(line));
  return text;
}

// The arguments of a call: a list of them, or a text with one JSON value in each line.
absl::StatusOr<Json> Arguments(const Json& input) {
  if (input.is_array()) return input;
  if (!input.is_string()) return Json::array({input});
  Json arguments = Json::array();
  for (const absl::string_view line :
       absl::StrSplit(input.get_ref<const std::string&>(), '\n', absl::SkipWhitespace())) {
    std::optional<Json> value = ParseValue(line);
    if (!value) return absl::InvalidArgumentError("an input of a function has a line that is not JSON");
    arguments.push_back(*std::move(value));
  }
  return arguments;
}

absl::StatusOr<std::vector<CodeTest>> PairsOf(const Json& object) {
  const auto inputs = object.find("inputs"), outputs = object.find("outputs");
  if (inputs == object.end() || outputs == object.end() || !inputs->is_array() || !outputs->is_array() ||
      inputs->size() != outputs->size()) {
    return absl::InvalidArgumentError("a truth that is an object needs as many \"inputs\" as \"outputs\"");
  }
  const auto name = object.find("fn_name");
  const bool function = name != object.end() && name->is_string();
  std::vector<CodeTest> tests;
  for (size_t i = 0; i < inputs->size(); ++i) {
    CodeTest test;
    if (function) {
      test.kind = CodeTest::Kind::kFunction;
      test.function = name->get<std::string>();
      TDOCK_ASSIGN_OR_RETURN(test.arguments, Arguments((*inputs)[i]));
      const Json& output = (*outputs)[i];
      const std::optional<Json> parsed =
          output.is_string() ? ParseValue(output.get_ref<const std::string&>()) : std::nullopt;
      test.expected = parsed.value_or(output);
    } else {
      test.input = TextOf((*inputs)[i]);
      test.output = TextOf((*outputs)[i]);
    }
    tests.push_back(std::move(test));
  }
  return tests;
}

absl::StatusOr<std::vector<CodeTest>> AnyTests(absl::string_view truth) {
  const absl::string_view text = absl::StripAsciiWhitespace(truth);
  if (absl::StartsWith(text, "{")) {
    const auto object = ParseJsonObject(MarkBigIntegers(text), kDeepest);
    if (!object.ok()) return Annotate(object.status(), "the tests");
    return PairsOf(*object);
  }
  const std::optional<Json> list = absl::StartsWith(text, "[") ? ParseValue(text) : std::nullopt;
  std::vector<CodeTest> tests;
  const auto add = [&](std::string assertions) {
    CodeTest test;
    test.kind = CodeTest::Kind::kAssertions;
    test.assertions = std::move(assertions);
    tests.push_back(std::move(test));
  };
  if (list && list->is_array()) {
    for (const Json& one : *list) {
      if (!one.is_string()) return absl::InvalidArgumentError("a list of tests has an element that is no text");
      add(one.get<std::string>());
    }
  } else if (absl::StrContains(text, "assert")) {
    add(std::string(text));
  } else if (!text.empty()) {
    return absl::InvalidArgumentError("the truth has no tests: neither \"inputs\" and \"outputs\" nor assertions");
  }
  return tests;
}

// A block between fences from `at` on; nothing if there is none.
struct Block {
  std::string language, text;
  size_t end;
};
std::optional<Block> NextBlock(absl::string_view text, size_t at) {
  const size_t open = text.find("```", at);
  if (open == absl::string_view::npos) return std::nullopt;
  const size_t line = text.find('\n', open);
  if (line == absl::string_view::npos) return std::nullopt;
  const size_t close = text.find("```", line);
  const absl::string_view language = absl::StripAsciiWhitespace(text.substr(open + 3, line - open - 3));
  return Block{.language = absl::AsciiStrToLower(language),
               .text = std::string(text.substr(line + 1, close == absl::string_view::npos ? close : close - line - 1)),
               .end = close == absl::string_view::npos ? text.size() : close + 3};
}

std::vector<absl::string_view> CleanLines(absl::string_view text) {
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  for (absl::string_view& line : lines) line = absl::StripAsciiWhitespace(line);
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

}  // namespace

absl::StatusOr<std::vector<CodeTest>> ParseCodeTests(absl::string_view truth) {
  TDOCK_ASSIGN_OR_RETURN(std::vector<CodeTest> tests, AnyTests(truth));
  if (tests.empty()) return absl::InvalidArgumentError("the truth has no tests");
  if (tests.size() > kMostTests) {
    return absl::InvalidArgumentError(
        absl::StrCat("the truth has ", tests.size(), " tests; at most ", kMostTests, " are run"));
  }
  return tests;
}

std::string ProgramOf(absl::string_view response) {
  std::optional<std::string> python, plain;
  std::optional<Block> block = NextBlock(response, 0);
  while (block) {
    if (block->language == "python" || block->language == "py" || block->language == "python3") python = block->text;
    if (block->language.empty()) plain = block->text;
    block = NextBlock(response, block->end);
  }
  return python ? *python : plain.value_or(std::string(response));
}

bool SameOutput(absl::string_view output, absl::string_view expected) {
  return CleanLines(output) == CleanLines(expected);
}

bool SameValue(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) {
    if (!a.is_number_float() && !b.is_number_float()) return a == b;
    const double x = a.get<double>(), y = b.get<double>();
    return std::abs(x - y) <= 1e-9 * std::max({1.0, std::abs(x), std::abs(y)});
  }
  for (const auto& [big, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    const std::string* const digits = BigDigits(*big);
    double value = 0;
    if (digits == nullptr || !other->is_number()) continue;
    return other->is_number_float() && absl::SimpleAtod(*digits, &value) && SameValue(Json(value), *other);
  }
  // In Python, True is 1.
  if (a.is_boolean() && b.is_number()) return SameValue(Json(a.get<bool>() ? 1 : 0), b);
  if (b.is_boolean() && a.is_number()) return SameValue(b, a);
  if (a.type() != b.type() || a.size() != b.size()) return false;
  if (a.is_array()) return std::equal(a.begin(), a.end(), b.begin(), SameValue);
  if (!a.is_object()) return a == b;
  for (const auto& [name, value] : a.items()) {
    const auto other = b.find(name);
    if (other == b.end() || !SameValue(value, *other)) return false;
  }
  return true;
}

bool SameResult(const Json& result, const Json& expected) {
  return SameValue(result, expected) || (expected.is_array() && expected.size() == 1 && SameValue(result, expected[0]));
}

}  // namespace tdock::reward
