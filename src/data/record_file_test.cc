#include "data/record_file.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/base/rng.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/growth.h"
#include "data/parquet_file.h"
#include "data/testing/bytes_file.h"

namespace tdock::data {
namespace {

using testing::ElementsAre;

absl::StatusOr<std::unique_ptr<RecordFile>> Open(std::string bytes, Format format, const RecordLimits& limits = {}) {
  return OpenRecordFile(std::make_unique<BytesFile>(std::move(bytes)), "f", format, limits);
}

// Values as a test compares them.
std::string Shown(const Value& value) {
  if (const auto* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const auto* i = std::get_if<int64_t>(&value)) return absl::StrCat(*i);
  if (const auto* d = std::get_if<double>(&value)) return absl::StrCat(*d, "f");
  if (value.text()) return absl::StrCat("'", *value.text(), "'");
  if (value.list()) {
    return absl::StrCat(
        "[", absl::StrJoin(*value.list(), ",", [](std::string* out, const Value& v) { *out += Shown(v); }), "]");
  }
  if (value.object()) {
    const auto field = [](std::string* out, const auto& f) { absl::StrAppend(out, f.first, ":", Shown(f.second)); };
    return absl::StrCat("{", absl::StrJoin(*value.object(), ",", field), "}");
  }
  return "-";
}

// Each record's cells, or what is wrong with it.
std::vector<std::string> ReadAll(const RecordFile& file, const std::vector<std::string>& wanted,
                                 std::vector<int64_t> indexes = {}) {
  if (indexes.empty()) {
    indexes.resize(static_cast<size_t>(file.size()));
    std::iota(indexes.begin(), indexes.end(), 0);
  }
  std::vector<std::string> shown;
  for (const auto& record : file.Read(indexes, wanted)) {
    shown.push_back(record.ok() ? absl::StrJoin(*record, " ", [](std::string* o, const Value& v) { *o += Shown(v); })
                                : std::string(record.status().message()));
  }
  return shown;
}

std::vector<std::string> ReadAll(std::string bytes, Format format, const std::vector<std::string>& wanted,
                                 const RecordLimits& limits = {}) {
  const auto file = Open(std::move(bytes), format, limits);
  if (!file.ok()) return {std::string(file.status().message())};
  return ReadAll(**file, wanted);
}

TEST(JsonLines, GivesTheCellsAskedFor) {
  EXPECT_THAT(ReadAll("{\"a\": \"x\\u00e9\\n\", \"b\": 1}\n\n  {\"b\": 2.5, \"c\": null, \"a\": true}\r\n"
                      "{\"a\": [1, {\"k\": \"v\"}], \"b\": 18446744073709551615}",
                      Format::kJsonLines, {"b", "a", "zz"}),
              ElementsAre("1 'x\u00e9\n' -", "2.5f true -", "1.84467e+19f [1,{k:'v'}] -"));
  EXPECT_THAT(ReadAll("", Format::kJsonLines, {"a"}), ElementsAre());
  EXPECT_THAT(ReadAll("\xEF\xBB\xBF{\"a\": 1}", Format::kJsonLines, {"a"}), ElementsAre("1"));
}

TEST(JsonLines, ABadRecordNamesItsLineAndStopsNoOther) {
  EXPECT_THAT(
      ReadAll("{\"a\": 1}\n\n{\"a\": }\n{\"a\": 2}\n[1]\n{\"a\": \"\xff\"}\n{\"a\": 1, \"a\": 2}\n"
              "{\"a\": 3} x\n{\"a\": {\"b\": 1, \"b\": 2}}\n{\"a\": 4}",
              Format::kJsonLines, {"a"}),
      ElementsAre("1", Mentions({"f:3: not JSON: ", "column 7", "'}'"}), "2", Mentions({"f:5: ", "JSON object"}),
                  Mentions({"f:6: ", "UTF-8", "byte 8"}), Mentions({"f:7: ", "'a'", "twice"}),
                  Mentions({"f:8: not JSON: "}), Mentions({"f:9: column 'a': ", "'b'", "twice"}), "4"));
}

TEST(JsonLines, NoNumberIsNamed) {
  EXPECT_THAT(ReadAll("{\"a\": NaN}\n{\"a\": -Infinity}\n{\"a\": \"NaN\"}", Format::kJsonLines, {"a"}),
              ElementsAre(Mentions({"f:1: not JSON: ", "NaN"}), Mentions({"f:2: not JSON: ", "Infinity"}), "'NaN'"));
}

TEST(JsonLines, NamesAreThoseOfTheFirstRecords) {
  const auto file = Open("{\"a\": 1}\nbroken\n{\"b\": 1, \"a\": 2}\n", Format::kJsonLines);
  EXPECT_THAT((*file)->columns(), ElementsAre("a", "b"));
}

TEST(JsonLines, LinesAreRightFarIntoAFile) {
  std::string bytes;
  std::vector<std::string> expected;
  for (int i = 0; i < 5000; ++i) {
    if (i % 7 == 0) bytes += "\n \n";
    const auto line = 1 + std::count(bytes.begin(), bytes.end(), '\n');
    bytes += "{\n";
    expected.push_back(absl::StrCat("f:", line, ": "));
  }
  const std::vector<std::string> got = ReadAll(bytes, Format::kJsonLines, {"a"});
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_THAT(got[i], testing::StartsWith(expected[i]));
}

TEST(JsonLines, BoundsWhatOneRecordCosts) {
  EXPECT_THAT(ReadAll("{\"a\": 1}\n{\"a\": \"xxxxxxxxxxxxxx\"}\n{\"a\": 2}", Format::kJsonLines, {"a"},
                      {.max_record_bytes = 16}),
              ElementsAre("1", Mentions({"f:2: ", "24 bytes", "at most 16"}), "2"));
  const std::string deep = absl::StrCat("{\"a\": ", std::string(100, '['), std::string(100, ']'), "}");
  EXPECT_THAT(ReadAll(deep, Format::kJsonLines, {"a"}), ElementsAre(Mentions({"f:1: ", "32 nested"})));
}

TEST(Json, IsAListOfObjects) {
  EXPECT_THAT(ReadAll(" [ {\"a\": \"]},{\\\"\"} ,\n{\"a\": [{}]},{}\n]\n", Format::kJson, {"a"}),
              ElementsAre("']},{\"'", "[{}]", "-"));
  EXPECT_THAT(ReadAll("[]", Format::kJson, {"a"}), ElementsAre());
}

TEST(Json, WhatIsNoListIsRefusedWithTheLine) {
  const auto expect = [](std::string bytes, std::vector<std::string> names) {
    EXPECT_THAT(Open(std::move(bytes), Format::kJson).status(),
                Fails(absl::StatusCode::kInvalidArgument, std::move(names)));
  };
  expect(" \n", {"f:2: ", "empty", "JSON list"});
  expect("{}", {"f:1: ", "'['", "'{'", "jsonl"});
  expect("[\n1]", {"f:2: ", "no object", "'1'"});
  expect("[{}\n{}]", {"f:2: ", "'{'", "',' or ']'"});
  expect("[{},]", {"f:1: ", "no object", "']'"});
  expect("[{},\n{\"a\": \"}]\n", {"f:2: ", "object", "never ends"});
  expect("[{}\n", {"f:2: ", "list", "never ends", "']'"});
  expect("[{}]\n.", {"f:2: ", "'.'", "list"});
}

TEST(Json, ABadObjectNamesItsLine) {
  EXPECT_THAT(
      ReadAll("[{\"a\": 1},\n{\"a\" 1},\n{\"a\": x},\n{\"a\": 2}]", Format::kJson, {"a"}),
      ElementsAre("1", Mentions({"f:2: not JSON", "column 6", "':'"}), Mentions({"f:3: not JSON", "'x'"}), "2"));
}

TEST(Csv, FollowsRfc4180) {
  EXPECT_THAT(ReadAll("a,b\r\n1,\"x,\"\"y\"\"\nz\"\r\n\r\n,\n\"\",last", Format::kCsv, {"b", "a", "c"}),
              ElementsAre("'x,\"y\"\nz' '1' -", "- - -", "'last' - -"));
  EXPECT_THAT(ReadAll("a", Format::kCsv, {"a"}), ElementsAre());
}

TEST(Csv, ABadRecordNamesItsLineAndStopsNoOther) {
  EXPECT_THAT(
      ReadAll("a,b\n1\n2,x\"y\n3,\"x\"y\n4,\"\n\",5\n6,\xff\n7,ok\n8,x\ry\n9,\"open\n10,x\n", Format::kCsv, {"a"}),
      ElementsAre(Mentions({"f:2: ", "1 fields", "header 2"}), Mentions({"f:3: field 2: ", "quote inside"}),
                  Mentions({"f:4: field 2: ", "'y'", "comma"}), Mentions({"f:5: ", "3 fields", "header 2"}),
                  Mentions({"f:7: ", "UTF-8", "byte 1"}), "'7'", Mentions({"f:9: field 2: ", "'\\r'", "comma"}),
                  Mentions({"f:10: field 2: ", "closing quote"})));
}

TEST(Csv, TheHeaderMustBeSound) {
  EXPECT_THAT(Open("", Format::kCsv).status(), Fails(absl::StatusCode::kInvalidArgument, {"f: ", "empty", "header"}));
  EXPECT_THAT(Open("\na,a\n", Format::kCsv).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"f:2: ", "header", "'a'", "twice"}));
  EXPECT_THAT(Open("a\"\n", Format::kCsv).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"f:1: ", "header", "field 1", "quote inside"}));
  EXPECT_THAT((*Open("a,b c,\n1,2,3", Format::kCsv))->columns(), ElementsAre("a", "b c", ""));
}

TEST(Text, EachLineIsARecord) {
  EXPECT_THAT(ReadAll("one\r\n\n  two \nthree", Format::kText, {"text", "a"}),
              ElementsAre("'one' -", "'  two ' -", "'three' -"));
  EXPECT_THAT(ReadAll("ok\nb\xff\n", Format::kText, {"text"}),
              ElementsAre("'ok'", Mentions({"f:2: ", "UTF-8", "byte 2"})));
}

TEST(RecordFile, AnyOrderGivesTheSameRecords) {
  Rng rng(1);
  for (const Format format : {Format::kJsonLines, Format::kJson, Format::kCsv, Format::kText}) {
    std::vector<std::string> rows;
    for (int i = 0; i < 3000; ++i) {
      const std::string cell = absl::StrCat(i, std::string(rng.Below(2000), 'x'));
      const bool bad = i % 50 == 7;
      if (format == Format::kText) rows.push_back(bad ? absl::StrCat(cell, "\xff") : cell);
      if (format == Format::kCsv) rows.push_back(bad ? absl::StrCat(cell, ",1") : cell);
      if (format == Format::kJsonLines || format == Format::kJson) {
        rows.push_back(bad ? absl::StrCat("{\"text\" \"", cell, "\"}") : absl::StrCat("{\"text\": \"", cell, "\"}"));
      }
    }
    std::string bytes = absl::StrJoin(rows, format == Format::kJson ? ",\n" : "\n");
    if (format == Format::kJson) bytes = absl::StrCat("[", bytes, "]");
    if (format == Format::kCsv) bytes = absl::StrCat("text\n", bytes);
    const auto file = *Open(bytes, format);
    const std::vector<std::string> in_order = ReadAll(*file, {"text"});
    ASSERT_EQ(in_order.size(), 3000u);
    EXPECT_THAT(in_order[7], Mentions({absl::StrCat("f:", format == Format::kCsv ? 9 : 8, ": ")}));
    std::vector<int64_t> order(3000);
    std::iota(order.begin(), order.end(), 0);
    rng.Shuffle(std::span(order));
    const std::vector<std::string> shuffled = ReadAll(*file, {"text"}, order);
    for (size_t i = 0; i < order.size(); ++i) ASSERT_EQ(shuffled[i], in_order[static_cast<size_t>(order[i])]);
  }
}

// Counts the bytes that are read.
class CountingFile final : public ReadableFile {
 public:
  CountingFile(std::string bytes, std::atomic<uint64_t>& read) : file_(std::move(bytes)), read_(read) {}
  uint64_t size() const override { return file_.size(); }
  absl::Status ReadAt(uint64_t offset, std::span<char> into) override {
    read_ += into.size();
    return file_.ReadAt(offset, into);
  }

 private:
  BytesFile file_;
  std::atomic<uint64_t>& read_;
};

TEST(RecordFile, ManyBadRecordsInAnyOrderCostLittle) {
  constexpr int64_t kRecords = 10'000;
  std::string bytes;
  for (int64_t i = 0; i < kRecords; ++i) absl::StrAppend(&bytes, "{\"text\" \"", std::string(50, 'x'), "\"}\n");
  const uint64_t size = bytes.size();
  std::atomic<uint64_t> read = 0;
  const auto file = *OpenRecordFile(std::make_unique<CountingFile>(bytes, read), "f", Format::kJsonLines);
  std::vector<int64_t> order(kRecords);
  std::iota(order.begin(), order.end(), 0);
  Rng(1).Shuffle(std::span(order));
  read = 0;
  const std::vector<std::string> shown = ReadAll(*file, {"text"}, order);
  EXPECT_THAT(shown[0], testing::StartsWith(absl::StrCat("f:", order[0] + 1, ": ")));
  EXPECT_LE(read, 8 * size);
}

TEST(RecordFile, AFileThatWasCutMeanwhileIsNoBadRecord) {
  const std::string path = testing::TempDir() + "/cut.jsonl";
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), path, "{\"a\": 1}\n{\"a\": 2}\n").ok());
  const auto file = *OpenRecordFile(Env::Real(), path, Format::kJsonLines);
  ASSERT_TRUE((*Env::Real().OpenForWriting(path, WriteMode::kTruncate))->Append("{\"a\": 1}\n").ok());
  const auto records = file->Read(std::vector<int64_t>{1}, {});
  EXPECT_EQ(records[0].status().code(), absl::StatusCode::kOutOfRange);
}

TEST(RecordFile, ItsContentIsThatOfItsBytes) {
  EXPECT_EQ((*Open("{}\n", Format::kJsonLines))->content(), text::HashOf("{}\n"));
}

// Five records in groups of two, which pyarrow wrote.
constexpr char kParquet[] = "tests/data/records.parquet";

TEST(Parquet, GivesTheCellsAskedForOrSaysThatItCannot) {
  const auto file = OpenRecordFile(Env::Real(), kParquet, Format::kParquet);
  if (!ReadsParquet()) {
    EXPECT_THAT(file.status(),
                Fails(absl::StatusCode::kUnimplemented, {kParquet, "libtdock_data_parquet.so", "make build"}));
    return;
  }
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->columns(), ElementsAre("prompt", "messages", "label", "score", "good", "when", "large"));
  EXPECT_THAT(ReadAll(**file, {"label", "prompt", "none", "score", "good", "large"}),
              ElementsAre("1 'a' - 0.5f true 'v'", "2 'b\u00e9' - 1f false 'w'", "3 - - 2f - 'x'",
                          "4 'd' - 3f true 'y'", "- 'e' - 4f false 'z'"));
  EXPECT_THAT(ReadAll(**file, {"messages"}, {4, 0, 3, 2}),
              ElementsAre("[]", "[{role:'user',content:'hi'},{role:'assistant',content:'yo'}]",
                          "[{role:'user',content:-}]", "-"));
  EXPECT_THAT(ReadAll(**file, {"when"}, {1}),
              ElementsAre(Mentions({kParquet, "record 2", "column 'when'", "timestamp[ms]"})));
}

// Forty records in groups of two: "00aaa…", "01bbb…".
constexpr char kGroups[] = "tests/data/groups.parquet";

TEST(Parquet, AnOrderThatJumpsReadsEachRowGroupOnce) {
  if (!ReadsParquet()) GTEST_SKIP() << "this build found no Arrow";
  std::atomic<uint64_t> read = 0;
  const std::string bytes = *Env::Real().ReadFile(kGroups);
  const auto file = *OpenRecordFile(std::make_unique<CountingFile>(bytes, read), "f", Format::kParquet);
  const std::vector<std::string> in_order = ReadAll(*file, {"text"});
  ASSERT_EQ(in_order.size(), 40u);
  const auto again = *OpenRecordFile(std::make_unique<CountingFile>(bytes, read), "f", Format::kParquet);
  std::vector<int64_t> order(40);
  std::iota(order.begin(), order.end(), 0);
  Rng(1).Shuffle(std::span(order));
  read = 0;
  const std::vector<std::string> shuffled = ReadAll(*again, {"text"}, order);
  EXPECT_LT(read, 2 * bytes.size());
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(shuffled[i], in_order[static_cast<size_t>(order[i])]);
  read = 0;
  ReadAll(*again, {"text"});
  EXPECT_EQ(read, 0u) << "small groups are kept";
}

TEST(Parquet, SeveralThreadsReadOneFile) {
  if (!ReadsParquet()) GTEST_SKIP() << "this build found no Arrow";
  const auto file = *OpenRecordFile(Env::Real(), kGroups, Format::kParquet);
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&file, seed] {
      Rng rng(seed);
      for (int i = 0; i < 100; ++i) {
        const auto index = static_cast<int64_t>(rng.Below(40));
        const std::string expected =
            absl::StrFormat("'%02d%s'", index, std::string(100, static_cast<char>('a' + index % 26)));
        EXPECT_THAT(ReadAll(*file, {"text"}, {index}), ElementsAre(expected));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A file that cannot be read any more once it is told so.
class FailingFile final : public ReadableFile {
 public:
  FailingFile(std::string bytes, const std::atomic<bool>& fails) : file_(std::move(bytes)), fails_(fails) {}
  uint64_t size() const override { return file_.size(); }
  absl::Status ReadAt(uint64_t offset, std::span<char> into) override {
    return fails_ ? absl::UnavailableError("the disk is gone") : file_.ReadAt(offset, into);
  }

 private:
  BytesFile file_;
  const std::atomic<bool>& fails_;
};

TEST(Parquet, AFileThatFailsIsNoBadRecord) {
  if (!ReadsParquet()) GTEST_SKIP() << "this build found no Arrow";
  std::atomic<bool> fails = false;
  const auto file =
      *OpenRecordFile(std::make_unique<FailingFile>(*Env::Real().ReadFile(kGroups), fails), "f", Format::kParquet);
  fails = true;
  const auto read = [&] { return file->Read(std::vector<int64_t>{3}, std::vector<std::string>{"text"})[0].status(); };
  EXPECT_THAT(read(), Fails(absl::StatusCode::kUnavailable, {"f: record 4: the disk is gone"}));
  fails = false;
  EXPECT_TRUE(read().ok()) << read();
}

TEST(Parquet, BoundsWhatOneRecordCosts) {
  if (!ReadsParquet()) GTEST_SKIP() << "this build found no Arrow";
  const auto read = [](const RecordLimits& limits, const std::string& column) {
    const auto file = OpenRecordFile(Env::Real(), kParquet, Format::kParquet, limits);
    return file.ok() ? ReadAll(**file, {column}, {0, 1}) : std::vector{std::string(file.status().message())};
  };
  EXPECT_THAT(read({.max_record_bytes = 2}, "prompt"),
              ElementsAre("'a'", Mentions({kParquet, "record 2", "column 'prompt'", "2 bytes"})));
  EXPECT_THAT(read({.max_depth = 3}, "messages")[0], testing::StartsWith("[{"));
  EXPECT_THAT(read({.max_depth = 2}, "messages")[0], Mentions({"record 1", "column 'messages'", "2 nested"}));
  EXPECT_THAT(read({.max_columns = 3}, "prompt"), ElementsAre(Mentions({kParquet, "7 columns", "at most 3"})));
}

// One text of 200,000 letters in 10,500 records, from a dictionary; and a number.
constexpr char kBomb[] = "tests/data/bomb.parquet";

TEST(Parquet, BoundsWhatFewBytesBecome) {
  if (!ReadsParquet()) GTEST_SKIP() << "this build found no Arrow";
  const auto bomb = OpenRecordFile(Env::Real(), kBomb, Format::kParquet);
  ASSERT_TRUE(bomb.ok()) << bomb.status();
  EXPECT_LT(Env::Real().ReadFile(kBomb)->size(), 108'000u);
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(ReadAll(**bomb, {"text"}, {3, 9}),
                ElementsAre(Mentions({kBomb, "record 4", "row group 0", "column 'text'", " in memory", "row groups"}),
                            Mentions({kBomb, "record 10"})));
    EXPECT_THAT(ReadAll(**bomb, {"number"}, {3}), ElementsAre("7"));
  }
}

TEST(Parquet, LimitsWhatARowGroupTakesAndHowManyRecordsThereAre) {
  if (!ReadsParquet()) GTEST_SKIP() << "this build found no Arrow";
  const auto read = [](const RecordLimits& limits) {
    const auto file = OpenRecordFile(Env::Real(), kGroups, Format::kParquet, limits);
    return file.ok() ? ReadAll(**file, {"text"}, {5, 6})
                     : std::vector{absl::StrCat("refused: ", file.status().message())};
  };
  EXPECT_THAT(read({.max_expansion = 0, .spare_bytes = int64_t{16} << 20})[1], testing::StartsWith("'06"));
  EXPECT_THAT(read({.max_expansion = 0, .spare_bytes = 100}),
              ElementsAre(Mentions({kGroups, "record 6", "row group 2, column 'text'", " 100 in memory"}),
                          Mentions({kGroups, "record 7", "row group 3, column 'text'", " 100 in memory"})));
  EXPECT_THAT(read({.max_expansion = 0, .spare_bytes = 39}),
              ElementsAre(Mentions({"refused: ", kGroups, "row group 19", "39 records"})));
}

TEST(Parquet, AColumnThatComesTwiceIsRefused) {
  if (!ReadsParquet()) GTEST_SKIP() << "this build found no Arrow";
  EXPECT_THAT(OpenRecordFile(Env::Real(), "tests/data/twice.parquet", Format::kParquet).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"tests/data/twice.parquet", "column 'a'", "twice"}));
}

TEST(Parquet, TheLibrariesInsideArrowStayHiddenFromTheProgram) {
  if (!ReadsParquet()) GTEST_SKIP() << "this build found no Arrow";
  ASSERT_TRUE(OpenRecordFile(Env::Real(), kParquet, Format::kParquet).ok());
  EXPECT_EQ(::dlsym(RTLD_DEFAULT, "SSL_new"), nullptr) << "others would speak to Arrow's OpenSSL";
  EXPECT_THAT(ReadAll(R"({"a": "\n"})", Format::kJsonLines, {"a"}), ElementsAre("'\n'")) << "by the simdjson of ours";
}

TEST(Parquet, DamageIsAnErrorAndNoCrash) {
  if (!ReadsParquet()) GTEST_SKIP() << "this build found no Arrow";
  const std::string whole = *Env::Real().ReadFile(kParquet);
  Rng rng(1);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = whole;
    if (i % 4 == 0) bytes.resize(rng.Below(bytes.size()));
    for (uint64_t n = rng.Below(4); n > 0 && !bytes.empty(); --n)
      bytes[rng.Below(bytes.size())] ^= static_cast<char>(1 << rng.Below(8));
    const auto file = Open(bytes, Format::kParquet);
    if (!file.ok()) {
      ++refused;
      EXPECT_THAT(std::string(file.status().message()), Mentions({"f: ", "Parquet file"}));
    } else if ((*file)->size() < 1000) {
      ReadAll(**file, {"prompt", "messages", "label"});
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(Format, IsKnownByItsPath) {
  EXPECT_EQ(FormatName(Format::kParquet), "parquet");
  EXPECT_EQ(*FormatOfPath("a/b.ndjson"), Format::kJsonLines);
  EXPECT_EQ(*FormatOfPath("b.json"), Format::kJson);
  EXPECT_EQ(*FormatOfPath("b.csv"), Format::kCsv);
  EXPECT_EQ(*FormatOfPath("b.txt"), Format::kText);
  EXPECT_THAT(FormatOfPath("b.bin").status(),
              Fails(absl::StatusCode::kInvalidArgument, {"b.bin: ", "format", ".jsonl, .ndjson, .json, .csv"}));
}

// A record with so many columns, all of which are wanted.
void ReadWide(Format format, int64_t columns) {
  std::vector<std::string> wanted;
  for (int64_t i = 0; i < columns; ++i) wanted.push_back(absl::StrCat("c", i));
  std::string bytes;
  if (format == Format::kCsv) {
    bytes = absl::StrCat(absl::StrJoin(wanted, ","), "\n", std::string(static_cast<size_t>(columns - 1), ','), "\n");
  } else {
    const auto field = [](std::string* out, const std::string& name) { absl::StrAppend(out, "\"", name, "\":0"); };
    bytes = absl::StrCat("{", absl::StrJoin(wanted, ",", field), "}\n");
  }
  const auto file = Open(bytes, format, {.max_record_bytes = int64_t{1} << 30, .max_columns = int64_t{1} << 30});
  ASSERT_TRUE(file.ok()) << file.status();
  const auto lacking = (*file)->Lacking(wanted);
  ASSERT_TRUE(lacking.ok() && !lacking->has_value());
  ASSERT_EQ((*file)->Read(std::vector<int64_t>{0}, wanted)[0]->size(), static_cast<size_t>(columns));
}

TEST(Csv, CostsWhatItsColumnsCost) {
  ExpectLinear([](int64_t columns) { ReadWide(Format::kCsv, columns); }, 4'000);
}

TEST(JsonLines, CostsWhatItsColumnsCost) {
  ExpectLinear([](int64_t columns) { ReadWide(Format::kJsonLines, columns); }, 4'000);
}

}  // namespace
}  // namespace tdock::data
