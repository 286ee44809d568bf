#include "core/config/yaml_reader.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <sstream>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace tdock::config {
namespace {

constexpr size_t kLongestPath = 256;

// Thrown for YAML that a configuration may not have.
struct Refusal final : YAML::ParserException {
  using YAML::ParserException::ParserException;
};

// Consumes the parser's events instead of its tree, so that hostile text is refused before anything is built from it.
// Throws Refusal.
class KeyCollector final : public YAML::EventHandler {
 public:
  KeyCollector(absl::string_view name, const Limits& limits) : name_(name), limits_(limits) {}

  YamlKeys Take() { return std::move(keys_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) Refuse(mark, "a second document begins here; a configuration is one");
  }
  void OnDocumentEnd() override {}

  void OnAnchor(const YAML::Mark& mark, const std::string&) override { Refuse(mark, "anchors (&) are not supported"); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { Refuse(mark, "aliases (*) are not supported"); }

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    if (open_.empty()) return;
    OnValue(mark, Given{.text = "", .null = true});
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, const std::string& value) override {
    RefuseTag(mark, tag);
    OnValue(mark, Given{.text = value, .quoted = tag == "!"});
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    RefuseTag(mark, tag);
    OnOpen(mark, YamlEntry::Kind::kList);
  }
  void OnSequenceEnd() override { open_.pop_back(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, YAML::EmitterStyle::value) override {
    RefuseTag(mark, tag);
    OnOpen(mark, YamlEntry::Kind::kSection);
  }
  void OnMapEnd() override { open_.pop_back(); }

 private:
  // A map or a list that has begun and not ended.
  struct Open {
    YamlEntry::Kind kind;
    bool in_list;               // here or further out
    std::string prefix;         // of its keys, with the dot
    std::optional<size_t> key;  // the entry whose value comes next; in a list of items, the entry that they are of
    bool key_in_list = false;   // the same inside lists, where no entries are kept
  };

  [[noreturn]] static void Refuse(const YAML::Mark& mark, const std::string& why) { throw Refusal(mark, why); }

  static void RefuseTag(const YAML::Mark& mark, const std::string& tag) {
    // "?" stands for no tag on a plain scalar, a map or a list, "!" for a quoted scalar.
    if (!tag.empty() && tag != "?" && tag != "!") Refuse(mark, "tags (!) are not supported");
  }

  void OnOpen(const YAML::Mark& mark, YamlEntry::Kind kind) {
    if (static_cast<int>(open_.size()) >= limits_.max_depth) {
      Refuse(mark, absl::StrCat("sections and lists are nested deeper than ", limits_.max_depth));
    }
    if (open_.empty()) {
      if (kind == YamlEntry::Kind::kList) Refuse(mark, "a configuration is a map of keys, not a list");
      open_.push_back({.kind = kind, .in_list = false, .prefix = "", .key = std::nullopt});
      return;
    }
    Open& outer = open_.back();
    if (outer.kind == YamlEntry::Kind::kSection && !outer.key && !outer.key_in_list) {
      Refuse(mark, "a key must be a word, not a map or a list");
    }
    Open inner{.kind = kind, .in_list = outer.in_list || kind == YamlEntry::Kind::kList, .prefix = "", .key = {}};
    if (outer.key) {
      YamlEntry& entry = keys_.entries[*outer.key];
      if (outer.kind == YamlEntry::Kind::kList) {
        entry.kind = YamlEntry::Kind::kNestedList;
        entry.items.clear();
      } else {
        entry.kind = kind;
        inner.prefix = absl::StrCat(entry.key, ".");
        if (kind == YamlEntry::Kind::kList) inner.key = outer.key;
      }
    }
    outer.key.reset();
    outer.key_in_list = false;
    open_.push_back(std::move(inner));
  }

  // Scalars are keys and values in turn.
  void OnValue(const YAML::Mark& mark, Given given) {
    if (open_.empty()) Refuse(mark, "a configuration is a map of keys, not a single value");
    Open& in = open_.back();
    if (in.kind == YamlEntry::Kind::kList) {
      if (in.key) AddItem(mark, std::move(given));
    } else if (in.in_list) {
      in.key_in_list = !in.key_in_list;
    } else if (in.key) {
      keys_.entries[*in.key].scalar = std::move(given);
      in.key.reset();
    } else {
      AddKey(mark, given);
    }
  }

  void AddItem(const YAML::Mark& mark, Given given) {
    if (items_++ >= limits_.max_items) Refuse(mark, absl::StrCat("lists have more than ", limits_.max_items, " items"));
    keys_.entries[*open_.back().key].items.push_back(std::move(given));
  }

  void AddKey(const YAML::Mark& mark, const Given& given) {
    if (given.null || given.text.empty()) Refuse(mark, "a key is empty");
    Open& in = open_.back();
    if (in.prefix.size() + given.text.size() > kLongestPath) {
      Refuse(mark, absl::StrCat("a key is longer than ", kLongestPath, " bytes"));
    }
    if (static_cast<int>(keys_.entries.size()) >= limits_.max_keys) {
      Refuse(mark, absl::StrCat("there are more than ", limits_.max_keys, " keys"));
    }
    YamlEntry entry;
    entry.key = in.prefix + given.text;
    entry.line = mark.line + 1;
    const auto [first, is_new] = lines_.try_emplace(entry.key, entry.line);
    if (!is_new) {
      keys_.duplicates.push_back(absl::StrCat(name_, ":", entry.line, ": ", EscapeForMessage(entry.key, kLongestPath),
                                              ": given twice, first in line ", first->second, "; keep one"));
    }
    in.key = keys_.entries.size();
    keys_.entries.push_back(std::move(entry));
  }

  const absl::string_view name_;
  const Limits limits_;
  int documents_ = 0;
  int items_ = 0;
  std::vector<Open> open_;
  YamlKeys keys_;
  absl::flat_hash_map<std::string, int> lines_;
};

// yaml-cpp would replace invalid UTF-8, and guess other encodings.
absl::Status CheckBytes(absl::string_view text, absl::string_view name, const Limits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the text has ", text.size(), " bytes; a configuration has at most ", limits.max_bytes));
  }
  const std::optional<size_t> invalid = FindInvalidUtf8(text);
  const size_t offset = std::min(invalid.value_or(text.size()), std::min(text.find('\0'), text.size()));
  if (offset < text.size()) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(offset), '\n');
    return absl::InvalidArgumentError(absl::StrCat(name, ":", line, ": not UTF-8 text"));
  }
  return absl::OkStatus();
}

// A mistake as the parser names it, and what would be right.
struct Mistake {
  const char* parsers;
  absl::string_view ours;
};
constexpr absl::string_view kQuoteStars = "no text can begin with '*' or '&': put it in quotes";
const Mistake kMistakes[] = {
    {YAML::ErrorMsg::MAP_VALUE,
     "a ':' stands where no key can be: put a text with ': ' in quotes, and indent the keys of a section alike"},
    {YAML::ErrorMsg::END_OF_MAP,
     "this is no key of the section before it: indent the keys of a section alike, and put a text in quotes as a "
     "whole"},
    {YAML::ErrorMsg::END_OF_SEQ, "this is no item of the list before it: indent its items alike, each with '- '"},
    {YAML::ErrorMsg::END_OF_MAP_FLOW, "a section that '{' begins is not closed: expected ',' or '}'"},
    {YAML::ErrorMsg::END_OF_SEQ_FLOW, "a list that '[' begins is not closed: expected ',' or ']'"},
    {YAML::ErrorMsg::FLOW_END, "this bracket closes nothing: remove it, or put the text in quotes"},
    {YAML::ErrorMsg::UNKNOWN_TOKEN, "no text can begin with this character: put it in quotes"},
    {YAML::ErrorMsg::EOF_IN_SCALAR, "a text in quotes does not end: close it with the quote that it begins with"},
    {YAML::ErrorMsg::DOC_IN_SCALAR, "'---' or '...' stands in a text in quotes: close it before"},
    {YAML::ErrorMsg::INVALID_ESCAPE, "this escape is not known: write \\\\ for a backslash, or use single quotes"},
    {YAML::ErrorMsg::INVALID_HEX, "expected hexadecimal digits: write \\\\ for a backslash, or use single quotes"},
    {YAML::ErrorMsg::CHAR_IN_BLOCK, "expected the end of the line: the text of '|' or '>' begins in the next"},
    {YAML::ErrorMsg::BLOCK_ENTRY, "no list begins in the line of its key: put each item, '- …', in a line of its own"},
    {YAML::ErrorMsg::MAP_KEY, "no text can begin with '? ': put it in quotes"},
    {YAML::ErrorMsg::ALIAS_NOT_FOUND, kQuoteStars},
    {YAML::ErrorMsg::ANCHOR_NOT_FOUND, kQuoteStars},
    {YAML::ErrorMsg::CHAR_IN_ALIAS, kQuoteStars},
    {YAML::ErrorMsg::CHAR_IN_ANCHOR, kQuoteStars},
    {YAML::ErrorMsg::UNKNOWN_ANCHOR, kQuoteStars}};

// The parser's words where a tab indents.
const char* const kStumbles[] = {YAML::ErrorMsg::TAB_IN_INDENTATION, YAML::ErrorMsg::MAP_VALUE,
                                 YAML::ErrorMsg::END_OF_MAP, YAML::ErrorMsg::BLOCK_ENTRY};

absl::Status ErrorAt(absl::string_view name, const YAML::Mark& mark, absl::string_view what) {
  const std::string where = mark.is_null() ? "" : absl::StrCat(":", mark.line + 1, ":", mark.column + 1);
  return absl::InvalidArgumentError(absl::StrCat(name, where, ": ", what));
}

absl::Status NotYaml(absl::string_view name, absl::string_view text, const YAML::Exception& error) {
  absl::string_view line = text;
  for (int i = 0; i < error.mark.line; ++i) line.remove_prefix(std::min(line.find('\n'), line.size() - 1) + 1);
  const size_t tab = std::min(line.find_first_not_of(' '), line.size());
  // The parser takes a tab for part of a word, and stumbles over what comes after.
  const bool stumbles = std::find(std::begin(kStumbles), std::end(kStumbles), error.msg) != std::end(kStumbles);
  if (stumbles && !error.mark.is_null() && line.substr(tab, 1) == "\t") {
    YAML::Mark mark = error.mark;
    mark.column = static_cast<int>(tab);
    return ErrorAt(name, mark, "a tab indents this line: indent with spaces");
  }
  for (const Mistake& mistake : kMistakes) {
    if (absl::StartsWith(error.msg, mistake.parsers)) return ErrorAt(name, error.mark, mistake.ours);
  }
  return ErrorAt(name, error.mark, absl::StrCat("not YAML: ", EscapeUnprintable(error.msg)));
}

}  // namespace

absl::StatusOr<YamlKeys> ReadYaml(absl::string_view text, absl::string_view name, const Limits& limits) {
  const std::string shown = EscapeUnprintable(name);
  if (absl::Status readable = CheckBytes(text, shown, limits); !readable.ok()) return readable;
  KeyCollector collector(shown, limits);
  try {
    // The parser overlooks an open quote if a line break ends the text. A comment behind it changes nothing else.
    std::istringstream stream{absl::StrCat(text, absl::EndsWith(text, "\n") ? "#" : "")};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(collector)) {
    }
  } catch (const Refusal& refusal) {
    return ErrorAt(shown, refusal.mark, refusal.msg);
  } catch (const YAML::Exception& error) {
    return NotYaml(shown, text, error);
  }
  return collector.Take();
}

}  // namespace tdock::config
