#include "core/config/yaml_reader.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace tdock::config {
namespace {

constexpr size_t kLongestPath = 256;

// Consumes the parser's events instead of its tree, so that hostile text is refused before anything is built from it.
// Throws YAML::ParserException, as the parser does.
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

  [[noreturn]] static void Refuse(const YAML::Mark& mark, const std::string& why) {
    throw YAML::ParserException(mark, why);
  }

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
      keys_.duplicates.push_back(absl::StrCat(name_, ":", entry.line, ": ", entry.key, ": given twice, first in line ",
                                              first->second, "; keep one"));
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

}  // namespace

absl::StatusOr<YamlKeys> ReadYaml(absl::string_view text, absl::string_view name, const Limits& limits) {
  if (absl::Status readable = CheckBytes(text, name, limits); !readable.ok()) return readable;
  KeyCollector collector(name, limits);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(collector)) {
    }
  } catch (const YAML::Exception& error) {
    const std::string where =
        error.mark.is_null() ? "" : absl::StrCat(":", error.mark.line + 1, ":", error.mark.column + 1);
    return absl::InvalidArgumentError(absl::StrCat(name, where, ": ", error.msg));
  }
  return collector.Take();
}

}  // namespace tdock::config
