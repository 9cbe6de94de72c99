// Goal: a batch that goes on with an earlier run's answers refuses changed lines before it sends
// any, and says how lines keep their names.
#include "cli/batch/batch_run.h"

#include <gmock/gmock.h>

#include <atomic>
#include <fstream>
#include <iterator>

#include "tests/testing/answering_client.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Answers every request at once, and counts them.
class EchoClient final : public AnsweringClient {
 public:
  int requests() const { return requests_; }

  absl::Status Generate(const v1::GenerateRequest& request, const OnPart& on_part) override {
    ++requests_;
    v1::GenerateResponse part;
    part.mutable_delta()->set_text(request.text());
    on_part(part);
    part.mutable_finished()->set_reason(v1::FINISH_REASON_STOP);
    on_part(part);
    return absl::OkStatus();
  }
  absl::StatusOr<v1::GetModelResponse> GetModel() override { return v1::GetModelResponse(); }

 private:
  std::atomic<int> requests_ = 0;
};

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

class BatchRun : public ::testing::Test {
 protected:
  absl::StatusOr<BatchCounts> Run(const std::string& lines) {
    std::ofstream(in_, std::ios::trunc) << lines;
    BatchOptions options;
    options.input = in_;
    options.output = out_;
    options.concurrency = 1;
    return RunBatch(options, client_);
  }

  const testing::TestFolder folder_{"batch_run"};
  const std::string in_ = (folder_ / "in.jsonl").string();
  const std::string out_ = (folder_ / "out.jsonl").string();
  EchoClient client_;
};

TEST_F(BatchRun, ARemovedLineIsSeenBeforeAnyIsSent) {
  ASSERT_OK_AND_ASSIGN(const BatchCounts first, Run("{\"prompt\":\"a\"}\n"
                                                    "{\"prompt\":5}\n"
                                                    "{\"prompt\":\"c\"}\n"
                                                    "{\"prompt\":\"d\"}\n"));
  EXPECT_EQ(first.answered, 3);
  EXPECT_EQ(first.failed, 1);
  // The second line has no answer, the third has that of another one.
  const auto again = Run("{\"prompt\":\"a\"}\n{\"prompt\":\"c\"}\n{\"prompt\":\"d\"}\n");
  EXPECT_THAT(
      again.status(),
      testing::StatusIs(absl::StatusCode::kFailedPrecondition,
                        AllOf(HasSubstr("in.jsonl:3: \"line-3\" has an answer in"),
                              HasSubstr("add custom_id to lines, or keep the line numbers"))));
  EXPECT_EQ(client_.requests(), 3);
  EXPECT_EQ(ReadAll(out_).find("\"line-2\""), std::string::npos);
  // An empty line in its place keeps the numbers.
  ASSERT_OK_AND_ASSIGN(const BatchCounts kept,
                       Run("{\"prompt\":\"a\"}\n\n{\"prompt\":\"c\"}\n{\"prompt\":\"d\"}\n"));
  EXPECT_EQ(kept.skipped, 3);
  EXPECT_EQ(kept.failed, 0);
}

TEST_F(BatchRun, LinesAreReadAgainFromTheFirstAfterTheCheck) {
  ASSERT_OK(Run("{\"custom_id\":\"x\",\"prompt\":\"a\"}").status());
  ASSERT_OK_AND_ASSIGN(const BatchCounts more, Run("{\"custom_id\":\"y\",\"prompt\":\"b\"}\n"
                                                   "{\"custom_id\":\"x\",\"prompt\":\"a\"}"));
  EXPECT_EQ(more.lines, 2);
  EXPECT_EQ(more.answered, 1);
  EXPECT_EQ(more.skipped, 1);
}

TEST_F(BatchRun, ALineWithItsOwnNameNeedsNoHint) {
  ASSERT_OK(Run("{\"custom_id\":\"x\",\"prompt\":\"a\"}\n").status());
  const auto changed = Run("{\"custom_id\":\"x\",\"prompt\":\"b\"}\n");
  EXPECT_THAT(changed.status(), testing::StatusIs(absl::StatusCode::kFailedPrecondition,
                                                  HasSubstr("or a new --output")));
  EXPECT_THAT(std::string(changed.status().message()), ::testing::Not(HasSubstr("add custom_id")));
}

}  // namespace
}  // namespace tandem::cli
