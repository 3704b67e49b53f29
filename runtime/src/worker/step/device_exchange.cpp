#include "worker/group/worker_group.hpp"
#include "worker/step/gpu_reduction.hpp"
#include "worker/step/gradient_exchange.hpp"

#include <span>

namespace troupe::runtime {

namespace {

class device_exchange final : public gradient_exchange {
 public:
  device_exchange(worker_group& group, const step_bucket& bucket, exchange_terms terms, step_id step)
      : group_(group),
        bucket_(bucket),
        terms_(std::move(terms)),
        reduction_(group.device_group(step), group.gpu().stream, bucket.layout(), terms_.shards,
                   {bucket.parts().begin(), bucket.parts().end()}) {}

  void begin(shard_range range) override { reduction_.begin(range); }
  bucket_memory next(shard_id shard) override { return reduction_.next(shard); }

  void start(std::size_t part) override { reduction_.start(part, terms_); }

  std::size_t started() const noexcept override { return reduction_.started(); }

  void finish() override {
    while (started() < bucket_.parts().size())
      start(bucket_.part_at(started()));
    reduction_.finish();
    metrics_.resize(bucket_.layout().segments()[1].elements);
    fetch(reduction_.result().subspan(bucket_.metrics_offset()), std::as_writable_bytes(std::span{metrics_}));
  }

  void wait_until_idle() noexcept override { reduction_.wait_until_idle(); }

  bool is_under_way() const override { return !reduction_.is_idle() && group_.is_device_group(reduction_.group()); }

  reduced_memory result() const noexcept override { return reduction_.result(); }
  std::span<const double> metrics() const noexcept override { return metrics_; }

  void read(bucket_memory from, std::span<std::byte> to) override { fetch(std::get<device_span<std::byte>>(from), to); }

 private:
  void fetch(device_span<const std::byte> from, std::span<std::byte> to) {
    value_or_throw(group_.gpu().copier->read(from, to));
  }

  worker_group& group_;
  const step_bucket& bucket_;
  exchange_terms terms_;
  gpu_reduction reduction_;
  std::vector<double> metrics_;
};

} // namespace

std::unique_ptr<gradient_exchange> make_device_exchange(worker_group& group, const step_bucket& bucket,
                                                        exchange_terms terms, step_id step) {
  return std::make_unique<device_exchange>(group, bucket, std::move(terms), step);
}

} // namespace troupe::runtime
