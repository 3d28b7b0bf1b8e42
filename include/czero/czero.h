/* czero: a DeepSpeed-compatible training engine in C. This header includes all others.
 *
 *   struct cz_model *model = cz_model_open("path/to/gpt2");
 *   struct cz_engine *engine = engine_initialize("ds_config.json", model);
 *   struct cz_batch batch = {.size = sizeof batch};
 *   while (engine_get_global_steps(engine) < 1000 && cz_data_next(data, &batch) == CZ_OK) {
 *       engine_forward(engine, &batch, &loss);
 *       engine_backward(engine);
 *       engine_step(engine);
 *   }
 *   engine_destroy(engine);
 *
 * Link with -lczero (`pkg-config --cflags --libs czero`), or in CMake find_package(czero) and
 * czero::czero or czero::static. docs/api.md is the guide. */
#ifndef CZERO_CZERO_H
#define CZERO_CZERO_H

#include <czero/checkpoint.h>
#include <czero/data.h>
#include <czero/engine.h>
#include <czero/infer.h>
#include <czero/layer.h>
#include <czero/model.h>
#include <czero/ops.h>
#include <czero/plan.h>
#include <czero/status.h>

#endif
