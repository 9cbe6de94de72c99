#include "cli/pull/download.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/pull/file_hash.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kHeaderBytesMax = 64 << 10;
constexpr long kRedirectsMax = 5, kConnectSeconds = 20;

struct CurlDelete {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

// What one call of the server brought.
struct Reply {
  long status = 0;
  std::string etag;
  std::optional<absl::Duration> retry_after;
};

// Takes a reply's body.
class Sink {
 public:
  virtual ~Sink() = default;
  // The first bytes follow. `from`: of the file, where they begin. False ends the call.
  virtual bool Begin(const Reply& reply, int64_t from) = 0;
  virtual bool Take(const char* data, size_t bytes) = 0;
};

struct Call {
  CURL* curl = nullptr;
  Sink* sink = nullptr;
  Reply reply;
  int64_t from = 0;  // asked for
  int64_t header_bytes = 0;
  bool begun = false;
  const std::function<bool(absl::Duration)>* wait = nullptr;
};

size_t OnHeader(char* data, size_t size, size_t count, void* user) {
  auto& call = *static_cast<Call*>(user);
  const size_t bytes = size * count;
  call.header_bytes += static_cast<int64_t>(bytes);
  if (call.header_bytes > kHeaderBytesMax) return 0;
  const absl::string_view line = absl::StripAsciiWhitespace(absl::string_view(data, bytes));
  if (absl::StartsWith(line, "HTTP/")) call.reply = Reply();  // of a redirection, or the last one
  const size_t colon = line.find(':');
  if (colon == absl::string_view::npos) return bytes;
  const std::string name = absl::AsciiStrToLower(line.substr(0, colon));
  const absl::string_view value = absl::StripAsciiWhitespace(line.substr(colon + 1));
  if (name == "etag") call.reply.etag = std::string(value.substr(0, 256));
  int64_t seconds = 0;
  if (name == "retry-after" && absl::SimpleAtoi(value, &seconds) && seconds >= 0)
    call.reply.retry_after = absl::Seconds(seconds);
  return bytes;
}

size_t OnBody(char* data, size_t size, size_t count, void* user) {
  auto& call = *static_cast<Call*>(user);
  const size_t bytes = size * count;
  if (!call.begun) {
    call.begun = true;
    curl_easy_getinfo(call.curl, CURLINFO_RESPONSE_CODE, &call.reply.status);
    // An error's page is not the file.
    if (call.reply.status == 206 || call.reply.status == 200) {
      if (!call.sink->Begin(call.reply, call.reply.status == 206 ? call.from : 0)) return 0;
    } else {
      call.sink = nullptr;
    }
  }
  if (call.sink == nullptr) return bytes;
  return call.sink->Take(data, bytes) ? bytes : 0;
}

int OnTick(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return (*static_cast<Call*>(user)->wait)(absl::ZeroDuration()) ? 0 : 1;
}

class TextSink final : public Sink {
 public:
  explicit TextSink(int64_t bytes_max) : bytes_max_(bytes_max) {}
  bool Begin(const Reply&, int64_t) override {
    text.clear();
    return true;
  }
  bool Take(const char* data, size_t bytes) override {
    too_large = static_cast<int64_t>(text.size() + bytes) > bytes_max_;
    if (!too_large) text.append(data, bytes);
    return !too_large;
  }
  std::string text;
  bool too_large = false;

 private:
  const int64_t bytes_max_;
};

// The .part file, and beside it the ETag of what it is a part of.
class PartSink final : public Sink {
 public:
  PartSink(std::string path, int64_t bytes_max, const Downloader::Progress& on_progress)
      : path_(std::move(path)), bytes_max_(bytes_max), on_progress_(on_progress) {}

  // What arrived earlier, if it can be gone on with.
  int64_t have() const {
    std::error_code error;
    const auto bytes = fs::file_size(path_, error);
    return error ? 0 : static_cast<int64_t>(bytes);
  }
  std::string etag() const {
    std::string etag;
    std::getline(std::ifstream(path_ + ".etag"), etag);
    return etag;
  }
  bool Begin(const Reply& reply, int64_t from) override {
    bytes_ = from;
    std::ofstream(path_ + ".etag") << reply.etag << "\n";
    // A server that sends the whole file begins it anew.
    file_.open(path_, from > 0 ? std::ios::binary | std::ios::app : std::ios::binary);
    return !(failed = !file_.is_open());
  }
  bool Take(const char* data, size_t bytes) override {
    bytes_ += static_cast<int64_t>(bytes);
    too_large = bytes_ > bytes_max_;
    if (too_large) return false;
    file_.write(data, static_cast<std::streamsize>(bytes));
    failed = !file_;
    on_progress_(bytes_);
    return !failed;
  }
  // False: what was written may not all be there.
  bool Close() {
    if (file_.is_open()) file_.close();
    return !(failed |= !file_);
  }
  void Discard() {
    std::error_code ignored;
    fs::remove(path_, ignored);
    fs::remove(path_ + ".etag", ignored);
  }
  bool too_large = false, failed = false;

 private:
  const std::string path_;
  const int64_t bytes_max_;
  const Downloader::Progress& on_progress_;
  std::ofstream file_;
  int64_t bytes_ = 0;
};

class CurlDownloader final : public Downloader {
 public:
  CurlDownloader(DownloadOptions options, CURL* curl) : options_(std::move(options)), curl_(curl) {}

  absl::StatusOr<std::string> FetchText(const std::string& url, int64_t bytes_max) override {
    std::string text;
    RETURN_IF_ERROR(Persist([&](bool& gained, std::optional<absl::Duration>& wait) {
      TextSink sink(bytes_max);
      const absl::Status status = Get(url, 0, "", sink, wait);
      gained = false;
      text = std::move(sink.text);
      if (sink.too_large) return TooLarge(url, bytes_max);
      return status;
    }));
    return text;
  }

  absl::StatusOr<std::string> Fetch(const RemoteFile& file, const std::string& path,
                                    const Progress& on_progress) override {
    const std::string part = path + ".part";
    std::string sha256;
    bool damaged = false;
    RETURN_IF_ERROR(Persist([&](bool& gained, std::optional<absl::Duration>& wait) {
      const absl::Status status = FetchPart(file, part, on_progress, gained, wait);
      if (!status.ok()) return status;
      absl::StatusOr<std::string> checked = Check(file, part);
      if (!checked.ok()) {
        PartSink(part, 0, on_progress).Discard();
        // Once more from the beginning; twice is no accident.
        if (std::exchange(damaged, true)) return absl::DataLossError(checked.status().message());
        return absl::UnavailableError(checked.status().message());
      }
      sha256 = *std::move(checked);
      return absl::OkStatus();
    }));
    std::error_code error;
    fs::rename(part, path, error);
    if (error) return absl::UnavailableError(absl::StrCat(path, ": ", error.message()));
    fs::remove(part + ".etag", error);
    return sha256;
  }

 private:
  static absl::Status TooLarge(const std::string& url, int64_t bytes_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat(url, ": has more than ", bytes_max, " bytes, the limit"));
  }

  // Calls `attempt` until it succeeds, fails for good, or `attempts` in a row gained nothing.
  template <typename Attempt>
  absl::Status Persist(const Attempt& attempt) {
    absl::Duration pause = options_.first_wait;
    for (int in_vain = 0;;) {
      bool gained = false;
      std::optional<absl::Duration> asked;
      const absl::Status status = attempt(gained, asked);
      if (status.code() != absl::StatusCode::kUnavailable) return status;
      if (gained) {
        in_vain = 0;
        pause = options_.first_wait;
      }
      if (++in_vain >= options_.attempts) return status;
      const absl::Duration wait =
          std::min(std::max(pause, asked.value_or(pause)), options_.wait_max);
      if (!options_.wait(wait)) return absl::CancelledError("interrupted");
      pause *= 2;
    }
  }

  absl::Status FetchPart(const RemoteFile& file, const std::string& part,
                         const Progress& on_progress, bool& gained,
                         std::optional<absl::Duration>& wait) {
    PartSink sink(part, file.bytes >= 0 ? file.bytes : file.bytes_max, on_progress);
    int64_t have = sink.have();
    if (file.bytes >= 0 && have > file.bytes) {
      sink.Discard();
      have = 0;
    }
    if (file.bytes >= 0 && have == file.bytes && have > 0) return absl::OkStatus();
    const absl::Status status = Get(file.url, have, sink.etag(), sink, wait);
    const bool written = sink.Close();
    gained = sink.have() > have;
    if (!written)
      return absl::ResourceExhaustedError(absl::StrCat(part, ": cannot be written (disk full?)"));
    if (sink.too_large) {
      sink.Discard();
      if (file.bytes < 0) return TooLarge(file.url, file.bytes_max);
      return absl::DataLossError(absl::StrCat(file.url, ": the server sends more than the ",
                                              file.bytes, " bytes that its list names"));
    }
    if (status.code() == absl::StatusCode::kOutOfRange) {
      sink.Discard();  // of another file than the server has now
      gained = false;
      return absl::UnavailableError(status.message());
    }
    RETURN_IF_ERROR(status);
    const int64_t bytes = sink.have();
    if (file.bytes >= 0 && bytes < file.bytes) {
      sink.Discard();
      return absl::DataLossError(absl::StrCat(file.url, ": the server has ", bytes,
                                              " bytes, and its list names ", file.bytes));
    }
    return absl::OkStatus();
  }

  static absl::StatusOr<std::string> Check(const RemoteFile& file, const std::string& part) {
    ASSIGN_OR_RETURN(const FileHashes hashes, HashFile(part));
    if (!file.sha256.empty() && hashes.sha256 != file.sha256) {
      return absl::DataLossError(
          absl::StrCat(file.url, ": has SHA-256 ", hashes.sha256, ", expected ", file.sha256));
    }
    if (!file.git_blob.empty() && hashes.git_blob != file.git_blob) {
      return absl::DataLossError(
          absl::StrCat(file.url, ": has git hash ", hashes.git_blob, ", expected ", file.git_blob));
    }
    return hashes.sha256;
  }

  // One call. kUnavailable: it may succeed later.
  absl::Status Get(const std::string& url, int64_t from, const std::string& etag, Sink& sink,
                   std::optional<absl::Duration>& wait) {
    CURL* curl = curl_.get();
    curl_easy_reset(curl);
    Call call{.curl = curl, .sink = &sink, .reply = {}, .from = from, .wait = &options_.wait};
    std::unique_ptr<curl_slist, CurlDelete> headers;
    const auto add_header = [&](const std::string& header) {
      headers.reset(curl_slist_append(headers.release(), header.c_str()));
    };
    if (from > 0) {
      curl_easy_setopt(curl, CURLOPT_RANGE, absl::StrCat(from, "-").c_str());
      if (!etag.empty() && !absl::StartsWith(etag, "W/")) add_header("If-Range: " + etag);
    }
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "tandem");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, kRedirectsMax);
    // An address of https never leads to http.
    const char* protocols = absl::StartsWith(url, "https://") ? "https" : "http,https";
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, protocols);
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, protocols);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME,
                     static_cast<long>(std::max<int64_t>(1, options_.stall / absl::Seconds(1))));
    if (!options_.token.empty() && IsTokenHost(url)) {
      // libcurl sends it to the first host only.
      curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
      curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, options_.token.c_str());
    }
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, OnHeader);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, &call);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, OnBody);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &call);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, OnTick);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &call);
    const CURLcode code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &call.reply.status);
    wait = call.reply.retry_after;
    if (code == CURLE_ABORTED_BY_CALLBACK) return absl::CancelledError("interrupted");
    if (code == CURLE_OK && call.reply.status == 200 && !call.begun) {
      // An empty file.
      if (!sink.Begin(call.reply, 0)) return absl::UnavailableError(url);
    }
    return StatusOf(url, code, call.reply.status);
  }

  bool IsTokenHost(absl::string_view url) const {
    url.remove_prefix(std::min(url.size(), url.find("://") + 3));
    return url.substr(0, url.find('/')) == options_.token_host;
  }

  absl::Status StatusOf(const std::string& url, CURLcode code, long status) const {
    if (status == 401 || status == 403) {
      return absl::PermissionDeniedError(absl::StrCat(
          url, ": the server answered ", status,
          options_.token.empty()
              ? "; if the model asks for it, accept its terms on its page and set HF_TOKEN"
              : "; the token that was sent may not read it"));
    }
    if (status == 404) return absl::NotFoundError(absl::StrCat(url, ": the server answered 404"));
    if (status == 416)
      return absl::OutOfRangeError(absl::StrCat(url, ": the server does not have that range"));
    if (status >= 400 && status != 408 && status != 429 && status < 500)
      return absl::InvalidArgumentError(absl::StrCat(url, ": the server answered ", status));
    if (status >= 400)
      return absl::UnavailableError(absl::StrCat(url, ": the server answered ", status));
    if (code == CURLE_OK) return absl::OkStatus();
    if (code == CURLE_TOO_MANY_REDIRECTS || code == CURLE_UNSUPPORTED_PROTOCOL)
      return absl::FailedPreconditionError(absl::StrCat(url, ": ", curl_easy_strerror(code)));
    return absl::UnavailableError(absl::StrCat(url, ": ", curl_easy_strerror(code)));
  }

  const DownloadOptions options_;
  const std::unique_ptr<CURL, CurlDelete> curl_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Downloader>> Downloader::Create(DownloadOptions options) {
  CURL* curl = curl_easy_init();
  if (curl == nullptr) return absl::InternalError("libcurl cannot be used");
  return std::make_unique<CurlDownloader>(std::move(options), curl);
}

}  // namespace tandem::cli
