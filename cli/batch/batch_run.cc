#include "cli/batch/batch_run.h"

#include <sys/stat.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cli/batch/batch_lines.h"
#include "common/base/status_macros.h"
#include "common/runtime/thread.h"

namespace tandem::cli {
namespace {

constexpr char kStandard[] = "-";

bool SameFile(const std::string& a, const std::string& b) {
  struct stat one {
  }, other{};
  return ::stat(a.c_str(), &one) == 0 && ::stat(b.c_str(), &other) == 0 &&
         one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

absl::Status CannotWrite(const std::string& path) {
  return absl::UnavailableError(absl::StrCat("--output ", path, ": cannot be written"));
}

// Reads an earlier run's output, and removes from the file what must be done again.
absl::StatusOr<BatchOutput> RepairOutput(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return BatchOutput();
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  absl::StatusOr<BatchOutput> output = ReadBatchOutput(text);
  if (!output.ok()) {
    return absl::Status(output.status().code(),
                        absl::StrCat("--output ", path, ": ", output.status().message()));
  }
  if (output->answers == text) return output;
  // By renaming, so that a crash meanwhile loses no answer.
  const std::string repaired = absl::StrCat(path, ".repaired");
  std::ofstream copy(repaired, std::ios::binary);
  copy << output->answers;
  copy.close();
  if (!copy || std::rename(repaired.c_str(), path.c_str()) != 0) return CannotWrite(path);
  return output;
}

class Batch {
 public:
  Batch(const BatchOptions& options, Client& client, absl::flat_hash_set<std::string> answered)
      : options_(options), client_(client), done_(std::move(answered)) {}

  absl::StatusOr<BatchCounts> Run() {
    if (options_.input != kStandard) {
      input_file_.open(options_.input, std::ios::binary);
      input_ = &input_file_;
    }
    if (options_.output != kStandard) {
      output_file_.open(options_.output, std::ios::binary | std::ios::app);
      output_ = &output_file_;
    }
    if (!*output_) return CannotWrite(options_.output);
    {
      std::vector<Thread> threads;
      for (int32_t i = 0; i < options_.concurrency; ++i) {
        threads.emplace_back("batch", [this] { Work(); });
      }
    }
    absl::MutexLock lock(&mutex_);
    output_->flush();
    if (!*output_) return CannotWrite(options_.output);
    return counts_;
  }

 private:
  struct Item {
    std::string line;
    int64_t number = 0;
    std::string name;
    bool name_taken = false;  // by an earlier line
  };

  void Work() {
    Item item;
    while (Take(item)) {
      const absl::StatusOr<BatchRequest> batch =
          ParseBatchLine(item.line, item.number, options_.defaults);
      if (!batch.ok()) {
        Fail(item.name, item.number, batch.status());
      } else if (item.name_taken) {
        Fail(item.name, item.number,
             absl::InvalidArgumentError(absl::StrCat(
                 "custom_id: \"", item.name, "\" is also an earlier line's, expected its own")));
      } else {
        Answer(*batch, item.number);
      }
    }
  }

  // The next line without an answer.
  bool Take(Item& item) {
    absl::MutexLock lock(&mutex_);
    while (*output_ && std::getline(*input_, item.line)) {
      item.number = ++number_;
      if (absl::StripAsciiWhitespace(item.line).empty()) continue;
      ++counts_.lines;
      item.name = BatchLineName(item.line, item.number);
      item.name_taken = !taken_.insert(item.name).second;
      if (!done_.contains(item.name)) return true;
      ++counts_.skipped;
    }
    return false;
  }

  void Answer(const BatchRequest& batch, int64_t number) {
    BatchAnswer answer;
    const absl::Status status =
        client_.Generate(batch.request, [&answer](const v1::GenerateResponse& part) {
          if (part.has_finished()) answer.finished = part.finished();
          answer.text += part.delta().text();
          for (const v1::GeneratedToken& token : part.delta().tokens()) {
            answer.tokens.push_back(token.token_id());
          }
          return true;
        });
    if (!status.ok()) return Fail(batch.custom_id, number, status);
    if (answer.finished.reason() == v1::FINISH_REASON_ABORTED) {
      return Fail(batch.custom_id, number, absl::AbortedError("the request was aborted"));
    }
    absl::MutexLock lock(&mutex_);
    ++counts_.answered;
    Write(FormatBatchAnswer(batch.custom_id, answer));
  }

  void Fail(const std::string& custom_id, int64_t number, const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    ++counts_.failed;
    std::fprintf(stderr, "%s:%ld: %s\n", options_.input.c_str(), static_cast<long>(number),
                 std::string(status.message()).c_str());
    Write(FormatBatchError(custom_id, number, status));
  }

  void Write(const std::string& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    *output_ << line << std::flush;
  }

  const BatchOptions& options_;
  Client& client_;
  const absl::flat_hash_set<std::string> done_;
  absl::Mutex mutex_;
  std::ifstream input_file_;
  std::ofstream output_file_;
  std::istream* input_ = &std::cin;    // what it points to: under the mutex once threads run
  std::ostream* output_ = &std::cout;  // likewise
  int64_t number_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_set<std::string> taken_ ABSL_GUARDED_BY(mutex_);  // names
  BatchCounts counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<BatchCounts> RunBatch(const BatchOptions& options, Client& client) {
  const bool to_file = options.output != kStandard;
  if (options.input != kStandard && !std::ifstream(options.input)) {
    return absl::NotFoundError(absl::StrCat("--batch ", options.input, ": cannot be read"));
  }
  if (to_file && options.input != kStandard && SameFile(options.input, options.output)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--output ", options.output, ": expected another file than --batch"));
  }
  RETURN_IF_ERROR(client.GetModel().status());
  BatchOutput earlier;
  if (to_file) {
    ASSIGN_OR_RETURN(earlier, RepairOutput(options.output));
  }
  return Batch(options, client, std::move(earlier.answered)).Run();
}

}  // namespace tandem::cli
