// Learns classes from a folder with one directory of JPEG or PNG images per class. They are decoded on two threads
// while the model trains; `read_tar_shards` takes the same images from tar files.
//   learn_images FOLDER [WORKERS]
#include <troupe/data/dense_model.hpp>
#include <troupe/data/images.hpp>
#include <troupe/data/loader.hpp>
#include <troupe/data/preprocessor.hpp>
#include <troupe/troupe.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

void learn(troupe::train_context& ctx) { // runs in every worker process
  namespace data = troupe::data;
  auto folder = ctx.options().at("folder").get<std::string>();
  // Reading a large folder takes minutes: the heartbeat tells that this is no hang.
  auto images = value_or_throw(
      data::read_image_folder(folder, {.height = 16, .width = 16, .heartbeat = [&] { ctx.heartbeat(); }}));
  auto pixels = data::rescaler({"image"}, 1.0 / 255); // bytes become numbers from 0 to 1
  auto [training, validation] = value_or_throw(data::split(value_or_throw(data::transformed(images, pixels)), 0.2));
  auto model = data::dense_model{*training, ctx.seed(), {.hidden = {16}, .inputs = "image"}};
  model.track(ctx.state());
  auto batches = data::loader{ctx, training, {.batch_samples = 32, .threads = 2}};
  ctx.for_each_step(batches.plan(model.gradient_elements()), [&](troupe::step& step) {
    for (auto& shard : step.shards())
      model.add_gradient(batches(step, shard), shard);
    model.apply(step.all_reduce(), step.number());
    auto metrics = step.last() ? model.evaluate(ctx, *validation) : troupe::metric_map{};
    metrics["loss"] = step.mean_loss();
    step.report(metrics);
  });
}

int main(int argc, char** argv) {
  auto train = troupe::function{"train", learn};
  auto app = troupe::app{argc, argv, {train}}; // first: a worker process ends in here
  if (argc < 2) {
    std::fprintf(stderr, "usage: learn_images FOLDER [WORKERS]\n");
    return 2;
  }
  auto workers = argc > 2 ? static_cast<std::uint32_t>(std::atoi(argv[2])) : 2;
  auto folder = std::filesystem::absolute(argv[1]).string();
  auto trainer = troupe::trainer{
      app, train, {.scaling = {.num_workers = workers}, .run = {.steps = 200}, .options = {{"folder", folder}}}};
  auto result = trainer.fit();
  if (result.status == troupe::run_status::failed)
    std::fprintf(stderr, "learn_images: %s\n", result.reason.message.c_str());
  for (const auto& [name, value] : result.metrics)
    std::printf("%s %.3f\n", name.c_str(), value);
  std::printf("state %s\n", result.state_sha256.c_str());
  return trainer.exit_code();
}
