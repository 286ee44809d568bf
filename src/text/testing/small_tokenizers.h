// Tokenizers of a few tokens, for tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "text/bpe.h"
#include "text/unicode.h"

namespace tdock::text::small {

using Json = nlohmann::json;

inline Json AddedTokenJson(int32_t id, const char* content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

inline Json ByteLevelJson() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", true}};
}

// GPT-2's kind: the 256 bytes in their order, then "he" 256, "ll" 257, "hell" 258, "hello" 259, " h" 260, and the
// special token <|end|> 261.
inline Json SmallByteLevel() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelled;
    AppendUtf8(ByteLevelChar(static_cast<uint8_t>(byte)), spelled);
    vocab[spelled] = byte;
  }
  int32_t id = 256;
  for (const char* token : {"he", "ll", "hell", "hello", "\xC4\xA0h"}) vocab[token] = id++;
  const Json merges = {"h e", "l l", "he ll", {"hell", "o"}, {"\xC4\xA0", "h"}};
  return {{"version", "1.0"},
          {"added_tokens", {AddedTokenJson(261, "<|end|>", true)}},
          {"normalizer", nullptr},
          {"pre_tokenizer", ByteLevelJson()},
          {"post_processor", nullptr},
          {"decoder", ByteLevelJson()},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

// Llama 2's kind: <unk> 0, <s> 1, the 256 bytes from 2 on, then "▁" 258, "a" 259, "b" 260, "▁a" 261, "ab" 262.
inline Json SmallByteFallback() {
  Json vocab = {{"<unk>", 0}, {"<s>", 1}};
  for (int byte = 0; byte < 256; ++byte) {
    const char* digits = "0123456789ABCDEF";
    vocab[std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">"] = byte + 2;
  }
  int32_t id = 258;
  for (const char* token : {"▁", "a", "b", "▁a", "ab"}) vocab[token] = id++;
  const Json to_block = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  const Json to_space = {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  const Json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  const Json begin = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json special = {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}};
  return {{"version", "1.0"},
          {"added_tokens", {AddedTokenJson(1, "<s>", true)}},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "▁"}}, to_block}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {begin, text}},
            {"pair", Json::array()},
            {"special_tokens", special}}},
          {"decoder",
           {{"type", "Sequence"}, {"decoders", {to_space, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}, strip}}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", vocab},
            {"merges", Json::array({"▁ a", Json::array({"a", "b"})})},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true}}}};
}

// A field of a protobuf message that holds bytes.
inline std::string BytesField(int number, const std::string& bytes) {
  std::string field(1, static_cast<char>(number << 3 | 2));
  for (size_t size = bytes.size(); true; size >>= 7) {
    field.push_back(static_cast<char>((size & 0x7F) | (size >= 128 ? 0x80 : 0)));
    if (size < 128) break;
  }
  return field + bytes;
}

inline std::string SmallPiece(const std::string& text, char type) {
  return BytesField(1, BytesField(1, text) + std::string("\x15\0\0\x80\xBF", 5) + '\x18' + type);  // score -1
}

// A sentencepiece model of unigrams: <unk> 0, <s> 1, </s> 2, "▁" 3, "a" 4, "▁ab" 5.
inline std::string SmallSentencePiece() {
  std::string model = SmallPiece("<unk>", 2) + SmallPiece("<s>", 3) + SmallPiece("</s>", 3);
  for (const char* text : {"▁", "a", "▁ab"}) model += SmallPiece(text, 1);
  return model + BytesField(2, std::string("\x18\x01", 2)) + BytesField(3, "");
}

}  // namespace tdock::text::small
