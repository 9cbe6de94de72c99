#include "sim/trace/trace_file.h"

#include <zlib.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace tandem::sim {
namespace {

// Reads a file's lines, of gzip or plain text, without their ends.
class LineReader {
 public:
  static absl::StatusOr<LineReader> Open(const std::string& path) {
    gzFile file = gzopen(path.c_str(), "rb");
    if (file == nullptr) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
    return LineReader(path, file);
  }

  // Leaves the next line in line(); false at the end.
  absl::StatusOr<bool> Next() {
    line_.clear();
    ++number_;
    // gzgets does not tell how many bytes it has read; the last zero byte is the end that it wrote.
    constexpr char kUnused = '\xFF';
    std::array<char, 4096> piece;
    piece.fill(kUnused);
    while (gzgets(file_.get(), piece.data(), piece.size()) != nullptr) {
      const absl::string_view all(piece.data(), piece.size());
      const absl::string_view got = all.substr(0, all.rfind('\0'));
      if (got.find('\0') != absl::string_view::npos) return Error("has a zero byte, expected text");
      line_.append(got.data(), got.size());
      piece.fill(kUnused);
      if (static_cast<int64_t>(line_.size()) > kLineBytesMax)
        return Error(absl::StrCat("longer than ", kLineBytesMax, " bytes"));
      if (line_.back() == '\n') break;
    }
    int error = Z_OK;
    const char* what = gzerror(file_.get(), &error);
    if (error != Z_OK && error != Z_STREAM_END)
      return Error(absl::StrCat("cannot be decompressed: ", what));
    if (line_.empty()) return false;
    while (!line_.empty() && (line_.back() == '\n' || line_.back() == '\r')) line_.pop_back();
    return true;
  }

  const std::string& line() const { return line_; }
  int64_t number() const { return number_; }
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ", line ", number_, ": ", what));
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  LineReader(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::string line_;
  int64_t number_ = 0;
};

absl::Status CheckTokens(const LineReader& lines, absl::string_view field, int64_t tokens,
                         int64_t least) {
  if (tokens >= least && tokens <= kTokensMax) return absl::OkStatus();
  return lines.Error(absl::StrCat(field, " is ", tokens, ", expected ", least, " to ", kTokensMax));
}

// What both formats have in common: arrivals count from the first one and never decrease.
class TraceSource : public WorkloadSource {
 public:
  absl::StatusOr<std::optional<TraceRequest>> Next() final {
    if (!first_read_) {
      ASSIGN_OR_RETURN(const bool more, lines_.Next());
      if (!more) return std::optional<TraceRequest>();
    }
    first_read_ = false;
    TraceRequest request;
    request.line = lines_.number();
    RETURN_IF_ERROR(Parse(request));
    if (!start_.has_value()) start_ = request.at;
    request.at -= *start_;
    if (request.at < last_)
      return lines_.Error(absl::StrCat("arrives at ", absl::FormatDuration(request.at),
                                       ", before the line above it (", absl::FormatDuration(last_),
                                       ")"));
    if (request.at - last_ > kTraceGapMax)
      return lines_.Error(absl::StrCat("arrives ", absl::FormatDuration(request.at - last_),
                                       " after the line above it, expected at most ",
                                       absl::FormatDuration(kTraceGapMax), "; times are ", Unit()));
    last_ = request.at;
    // An answer of no token still ends with one.
    request.output_tokens = std::max<int64_t>(1, request.output_tokens);
    return std::optional<TraceRequest>(std::move(request));
  }

 protected:
  // `first_read`: the reader's line is the first request already.
  TraceSource(LineReader lines, bool first_read)
      : lines_(std::move(lines)), first_read_(first_read) {}
  // Fills all but `line` from lines_.line(); `at` counts from any moment.
  virtual absl::Status Parse(TraceRequest& request) = 0;
  virtual absl::string_view Unit() const = 0;  // of the times: "milliseconds"

  LineReader lines_;

 private:
  bool first_read_;
  std::optional<absl::Duration> start_;
  absl::Duration last_;
};

class JsonTrace final : public TraceSource {
 public:
  explicit JsonTrace(LineReader lines) : TraceSource(std::move(lines), /*first_read=*/true) {}

 private:
  absl::string_view Unit() const override { return "milliseconds"; }

  absl::StatusOr<int64_t> Field(const nlohmann::json& line, const char* name) const {
    const auto found = line.find(name);
    if (found == line.end() || !found->is_number_integer())
      return lines_.Error(absl::StrCat("\"", name, "\" is missing or no whole number"));
    if (found->is_number_unsigned() &&
        found->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return lines_.Error(absl::StrCat("\"", name, "\" is larger than any time or length"));
    return found->get<int64_t>();
  }

  absl::Status Parse(TraceRequest& request) override {
    const nlohmann::json line = nlohmann::json::parse(lines_.line(), nullptr, false);
    if (!line.is_object()) return lines_.Error("expected a JSON object");
    ASSIGN_OR_RETURN(const int64_t ms, Field(line, "timestamp"));
    ASSIGN_OR_RETURN(request.prompt_tokens, Field(line, "input_length"));
    ASSIGN_OR_RETURN(request.output_tokens, Field(line, "output_length"));
    request.at = absl::Milliseconds(ms);
    RETURN_IF_ERROR(CheckTokens(lines_, "input_length", request.prompt_tokens, 1));
    RETURN_IF_ERROR(CheckTokens(lines_, "output_length", request.output_tokens, 0));
    return ParseBlocks(line, request);
  }

  absl::Status ParseBlocks(const nlohmann::json& line, TraceRequest& request) const {
    const auto found = line.find("hash_ids");
    if (found == line.end() || !found->is_array())
      return lines_.Error("\"hash_ids\" is missing or no list");
    const int64_t blocks = (request.prompt_tokens + kTraceBlockTokens - 1) / kTraceBlockTokens;
    if (static_cast<int64_t>(found->size()) != blocks)
      return lines_.Error(absl::StrCat("\"hash_ids\" has ", found->size(), " names, expected ",
                                       blocks, ": one for each ", kTraceBlockTokens,
                                       " tokens of input_length"));
    for (const nlohmann::json& name : *found) {
      if (!name.is_number_unsigned() || name.get<uint64_t>() >= kBlockNamesMax)
        return lines_.Error(absl::StrCat("a name in \"hash_ids\" is ", name.dump(),
                                         ", expected a whole number below 2^48"));
      request.blocks.push_back(name.get<uint64_t>());
    }
    return absl::OkStatus();
  }
};

class CsvTrace final : public TraceSource {
 public:
  struct Columns {
    size_t time = 0, prompt = 0, output = 0, count = 0;
    bool dates = false;  // times are dates; otherwise nanoseconds
  };
  CsvTrace(LineReader lines, const Columns& columns)
      : TraceSource(std::move(lines), /*first_read=*/false), columns_(columns) {}

  // nullopt when the line is no header that this class knows.
  static std::optional<Columns> ParseHeader(absl::string_view line) {
    const std::vector<absl::string_view> names = absl::StrSplit(line, ',');
    Columns columns = {.count = names.size()};
    int found = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      const absl::string_view name = names[i];
      const auto is = [&](absl::string_view a, absl::string_view b, size_t& column) {
        if (name != a && name != b) return;
        column = i;
        ++found;
      };
      is("TIMESTAMP", "arrival_ns", columns.time);
      is("ContextTokens", "input_tokens", columns.prompt);
      is("GeneratedTokens", "output_tokens", columns.output);
      if (name == "TIMESTAMP") columns.dates = true;
    }
    return found == 3 ? std::optional<Columns>(columns) : std::nullopt;
  }

 private:
  absl::string_view Unit() const override { return columns_.dates ? "dates" : "nanoseconds"; }

  absl::Status Parse(TraceRequest& request) override {
    const std::vector<absl::string_view> fields = absl::StrSplit(lines_.line(), ',');
    if (fields.size() != columns_.count)
      return lines_.Error(
          absl::StrCat(fields.size(), " fields, expected ", columns_.count, " as in the header"));
    if (!absl::SimpleAtoi(fields[columns_.prompt], &request.prompt_tokens))
      return lines_.Error(absl::StrCat("the prompt's tokens are '", fields[columns_.prompt],
                                       "', expected a whole number"));
    if (!absl::SimpleAtoi(fields[columns_.output], &request.output_tokens))
      return lines_.Error(absl::StrCat("the answer's tokens are '", fields[columns_.output],
                                       "', expected a whole number"));
    RETURN_IF_ERROR(CheckTokens(lines_, "the prompt's length", request.prompt_tokens, 1));
    RETURN_IF_ERROR(CheckTokens(lines_, "the answer's length", request.output_tokens, 0));
    return ParseTime(fields[columns_.time], request);
  }

  absl::Status ParseTime(absl::string_view text, TraceRequest& request) const {
    if (columns_.dates) {
      absl::Time time;
      std::string why;
      if (!absl::ParseTime("%Y-%m-%d %H:%M:%E*S", text, &time, &why))
        return lines_.Error(absl::StrCat("the time is '", text, "': ", why));
      request.at = time - absl::UnixEpoch();
      return absl::OkStatus();
    }
    int64_t ns = 0;
    if (!absl::SimpleAtoi(text, &ns))
      return lines_.Error(absl::StrCat("the time is '", text, "', expected nanoseconds"));
    request.at = absl::Nanoseconds(ns);
    return absl::OkStatus();
  }

  const Columns columns_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkloadSource>> OpenTrace(const std::string& path) {
  ASSIGN_OR_RETURN(LineReader lines, LineReader::Open(path));
  ASSIGN_OR_RETURN(const bool any, lines.Next());
  if (any && absl::StartsWith(lines.line(), "{"))
    return std::make_unique<JsonTrace>(std::move(lines));
  const auto columns = any ? CsvTrace::ParseHeader(lines.line()) : std::nullopt;
  if (!columns.has_value())
    return lines.Error(
        "expected JSON Lines with timestamp, input_length, output_length and hash_ids, or a CSV "
        "header with TIMESTAMP,ContextTokens,GeneratedTokens or "
        "arrival_ns,input_tokens,output_tokens");
  return std::make_unique<CsvTrace>(std::move(lines), *columns);
}

}  // namespace tandem::sim
