-- Made by version 0.1: fedcopl reproduce at scale smoke, one run of two rounds.
PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE runs (
    key TEXT PRIMARY KEY, status TEXT NOT NULL CHECK (status IN ('done', 'failed')),
    name TEXT, seed ANY, method TEXT, labeler TEXT,
    zero_shot_macro REAL, zero_shot_weighted REAL, zero_shot_global REAL,
    final_macro REAL, final_weighted REAL, final_global REAL,
    best_macro REAL, best_weighted REAL, best_global REAL,
    error TEXT, seconds REAL NOT NULL, host TEXT NOT NULL, code TEXT NOT NULL,
    started TEXT NOT NULL, finished TEXT NOT NULL, folder TEXT NOT NULL,
    settings_json TEXT NOT NULL, results_json TEXT, versions_json TEXT NOT NULL
) STRICT;
INSERT INTO runs VALUES('9b5ecae07ee93424','done','fedcopl-copl-digits',1,'fedcopl','copl',0.7622948989842616152,0.7629382303839732371,0.7629382303839732371,0.8186851211072664336,0.81803005008347240423,NULL,0.8186851211072664336,0.81803005008347240423,NULL,NULL,5.9994455659998493501,'here','0.1.0+612d50f944cc101f','2026-11-16T15:21:33+00:00','2026-11-16T15:21:41+00:00','runs/9b5ecae07ee93424','{"name": "fedcopl-copl-digits", "seed": 1, "rounds": 2, "method": "fedcopl", "labeler": "copl", "data": {"source": "digits", "path": "", "classes_file": "", "corrections": "", "label_column": "", "clients": 2, "partition": "dirichlet", "beta": 0.1, "classes_per_client": 0, "min_train": 10}, "model": {"backbone": "glyph-clip", "activation": "auto", "template": "", "visual_prompts": 5, "visual_depth": "all-but-last", "text_prompts": 16, "init_std": 0.02, "device": "auto", "precision": "fp32", "memory": 4.0, "threads": 1}, "labels": {"refresh_every": 5, "confidence_filter": true, "confidence_quantile": 0.5, "entropy_filter": true, "entropy_quantile": 0.5, "global_allocation": true, "budget": "exact", "unseen": "grow", "candidates": "argmax", "per_class": 4, "capacity": "fixed", "fpl_rule": "argmax", "cpl_alpha": "auto", "cpl_beta": "auto", "cpl_loss": "cc", "cpl_targets": "sets"}, "train": {"epochs": 1, "batch": 64, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.05, "clip_norm": 0.0, "schedule": "refresh"}, "sharing": {"participation": 1.0, "aggregate": "visual"}, "evaluation": {"every": 1, "everywhere": false}, "privacy": {"secure_sums": false, "min_sites": 2, "threshold": 0.6, "noise": 0.0, "count_clip": 50.0, "update_clip": 0.1, "delta": 1e-05}, "options": {}}','{"name": "fedcopl-copl-digits", "seed": 1, "zero_shot": {"macro": 0.7622948989842616, "weighted": 0.7629382303839732, "global": 0.7629382303839732, "recall": [0.9047619047619048, 0.5396825396825397, 0.8412698412698413, 0.9629629629629629, 0.9482758620689655, 0.9508196721311475, 0.7222222222222222, 0.6166666666666667, 0.7301587301587301, 0.43333333333333335]}, "final": {"macro": 0.8186851211072664, "weighted": 0.8180300500834724, "global": null, "round": 1}, "best": {"macro": 0.8186851211072664, "weighted": 0.8180300500834724, "global": null, "round": 1}, "pseudo_label_accuracy": [0.9600665557404326], "images_used": 601, "privacy": null, "bytes_up": 31040, "bytes_down": 77088, "seconds": 5.999445565999849, "shared": ["visual"], "classes": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"], "template": "a photo of a {}", "images_left_out": 0, "rounds": [{"round": 0, "refreshed": true, "participants": 2, "sites": ["client-0", "client-1"], "totals": [73, 17, 86, 116, 82, 70, 37, 45, 52, 16], "labelling": {"images": 1198, "chosen": 601, "compared": 0, "unchanged": 0}, "examples": 601, "loss": 0.5712729455614943, "bytes_up": 15616, "bytes_down": 46336, "kept_old_prompt": false, "dropped": {}, "drift": {"visual": {"diversity": 0.9392957294832572, "cosine": 0.8620173788432368}}, "releases": [], "macro": 0.7555195892398705, "weighted": 0.7545909849749582, "global": null, "clients": [0.7290322580645161, 0.7820069204152249], "recall": [0.9523809523809523, 0.5079365079365079, 0.6984126984126984, 0.8333333333333334, 0.7758620689655172, 0.8852459016393442, 0.6666666666666666, 0.7, 0.6825396825396826, 0.85], "pseudo_label_accuracy": 0.9600665557404326, "seconds_of": {"evaluate": 0.4684196789999078, "estimate": 0.6904100379997544, "select": 0.000575853999635001, "train": 2.5951237640006184}, "seconds_per_step": 0.25951237640006186, "seconds": 5.066443132999666}, {"round": 1, "refreshed": false, "participants": 2, "sites": ["client-0", "client-1"], "totals": null, "labelling": null, "examples": 601, "loss": 0.07419132018545503, "bytes_up": 15424, "bytes_down": 30752, "kept_old_prompt": false, "dropped": {}, "drift": {"visual": {"diversity": 0.7669478616669363, "cosine": 0.6232827471918325}, "text": {"diversity": 19.448643235431447, "cosine": 1.9530936715492702}}, "releases": [], "macro": 0.8186851211072664, "weighted": 0.8180300500834724, "global": null, "clients": [0.8, 0.8373702422145328], "recall": [0.9365079365079365, 0.746031746031746, 0.9047619047619048, 0.9259259259259259, 0.896551724137931, 0.9508196721311475, 0.8148148148148148, 0.6166666666666667, 0.6825396825396826, 0.7166666666666667], "seconds_of": {"train": 0.6262497050001912, "evaluate": 0.2877324790001694}, "seconds_per_step": 0.06262497050001911, "seconds": 5.999445565999849}], "refreshes": [{"round": 0, "images": 601, "estimated": [[0, 1, 78, 0, 75, 27, 37, 36, 52, 1], [73, 16, 8, 116, 7, 43, 0, 9, 0, 15]], "allocated": [[0, 4, 54, 0, 55, 23, 60, 48, 60, 4], [60, 56, 6, 60, 6, 37, 0, 12, 0, 56]], "selected": [[0, 4, 54, 0, 55, 23, 60, 48, 60, 4], [60, 56, 6, 60, 6, 37, 0, 12, 0, 56]], "pseudo_label_accuracy": 0.9600665557404326, "coverage": null, "mean_set_size": null, "distribution_similarity": 0.9939838461277857}], "clients": [{"name": "client-0", "train": 619, "test": 310, "zero_shot": 0.7806451612903226, "final": 0.8, "true_counts": [0, 1, 101, 0, 116, 44, 127, 119, 111, 0]}, {"name": "client-1", "train": 579, "test": 289, "zero_shot": 0.7439446366782007, "final": 0.8373702422145328, "true_counts": [115, 118, 13, 129, 7, 77, 0, 0, 0, 120]}], "settings": {"name": "fedcopl-copl-digits", "seed": 1, "rounds": 2, "method": "fedcopl", "labeler": "copl", "data": {"source": "digits", "path": "", "classes_file": "", "corrections": "", "label_column": "", "clients": 2, "partition": "dirichlet", "beta": 0.1, "classes_per_client": 0, "min_train": 10}, "model": {"backbone": "glyph-clip", "activation": "auto", "template": "", "visual_prompts": 5, "visual_depth": "all-but-last", "text_prompts": 16, "init_std": 0.02, "device": "auto", "precision": "fp32", "memory": 4.0, "threads": 1}, "labels": {"refresh_every": 5, "confidence_filter": true, "confidence_quantile": 0.5, "entropy_filter": true, "entropy_quantile": 0.5, "global_allocation": true, "budget": "exact", "unseen": "grow", "candidates": "argmax", "per_class": 4, "capacity": "fixed", "fpl_rule": "argmax", "cpl_alpha": "auto", "cpl_beta": "auto", "cpl_loss": "cc", "cpl_targets": "sets"}, "train": {"epochs": 1, "batch": 64, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.05, "clip_norm": 0.0, "schedule": "refresh"}, "sharing": {"participation": 1.0, "aggregate": "visual"}, "evaluation": {"every": 1, "everywhere": false}, "privacy": {"secure_sums": false, "min_sites": 2, "threshold": 0.6, "noise": 0.0, "count_clip": 50.0, "update_clip": 0.1, "delta": 1e-05}, "options": {}}, "versions": {"python": "3.11.7", "fedcopl": "0.1.0", "torch": "2.13.0+cpu", "numpy": "2.4.6", "tokenizers": "0.23.3", "safetensors": "0.8.0", "pillow": "13.0.0"}}','{"python": "3.11.7", "fedcopl": "0.1.0", "torch": "2.13.0+cpu", "numpy": "2.4.6", "tokenizers": "0.23.3", "safetensors": "0.8.0", "pillow": "13.0.0"}');
CREATE TABLE settings (
    key TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, name TEXT NOT NULL, value ANY, PRIMARY KEY (key, name)
) STRICT, WITHOUT ROWID;
INSERT INTO settings VALUES('9b5ecae07ee93424','data.beta',0.10000000000000000555);
INSERT INTO settings VALUES('9b5ecae07ee93424','data.classes_file','');
INSERT INTO settings VALUES('9b5ecae07ee93424','data.classes_per_client',0);
INSERT INTO settings VALUES('9b5ecae07ee93424','data.clients',2);
INSERT INTO settings VALUES('9b5ecae07ee93424','data.corrections','');
INSERT INTO settings VALUES('9b5ecae07ee93424','data.label_column','');
INSERT INTO settings VALUES('9b5ecae07ee93424','data.min_train',10);
INSERT INTO settings VALUES('9b5ecae07ee93424','data.partition','dirichlet');
INSERT INTO settings VALUES('9b5ecae07ee93424','data.path','');
INSERT INTO settings VALUES('9b5ecae07ee93424','data.source','digits');
INSERT INTO settings VALUES('9b5ecae07ee93424','evaluation.every',1);
INSERT INTO settings VALUES('9b5ecae07ee93424','evaluation.everywhere',0);
INSERT INTO settings VALUES('9b5ecae07ee93424','labeler','copl');
INSERT INTO settings VALUES('9b5ecae07ee93424','labels.budget','exact');
INSERT INTO settings VALUES('9b5ecae07ee93424','labels.candidates','argmax');
INSERT INTO settings VALUES('9b5ecae07ee93424','labels.capacity','fixed');
INSERT INTO settings VALUES('9b5ecae07ee93424','labels.confidence_filter',1);
INSERT INTO settings VALUES('9b5ecae07ee93424','labels.confidence_quantile',0.5);
INSERT INTO settings VALUES('9b5ecae07ee93424','labels.cpl_alpha','auto');
INSERT INTO settings VALUES('9b5ecae07ee93424','labels.cpl_beta','auto');
INSERT INTO settings VALUES('9b5ecae07ee93424','labels.cpl_loss','cc');
INSERT INTO settings VALUES('9b5ecae07ee93424','labels.cpl_targets','sets');
INSERT INTO settings VALUES('9b5ecae07ee93424','labels.entropy_filter',1);
INSERT INTO settings VALUES('9b5ecae07ee93424','labels.entropy_quantile',0.5);
INSERT INTO settings VALUES('9b5ecae07ee93424','labels.fpl_rule','argmax');
INSERT INTO settings VALUES('9b5ecae07ee93424','labels.global_allocation',1);
INSERT INTO settings VALUES('9b5ecae07ee93424','labels.per_class',4);
INSERT INTO settings VALUES('9b5ecae07ee93424','labels.refresh_every',5);
INSERT INTO settings VALUES('9b5ecae07ee93424','labels.unseen','grow');
INSERT INTO settings VALUES('9b5ecae07ee93424','method','fedcopl');
INSERT INTO settings VALUES('9b5ecae07ee93424','model.activation','auto');
INSERT INTO settings VALUES('9b5ecae07ee93424','model.backbone','glyph-clip');
INSERT INTO settings VALUES('9b5ecae07ee93424','model.device','auto');
INSERT INTO settings VALUES('9b5ecae07ee93424','model.init_std',0.020000000000000000416);
INSERT INTO settings VALUES('9b5ecae07ee93424','model.memory',4.0);
INSERT INTO settings VALUES('9b5ecae07ee93424','model.precision','fp32');
INSERT INTO settings VALUES('9b5ecae07ee93424','model.template','');
INSERT INTO settings VALUES('9b5ecae07ee93424','model.text_prompts',16);
INSERT INTO settings VALUES('9b5ecae07ee93424','model.threads',1);
INSERT INTO settings VALUES('9b5ecae07ee93424','model.visual_depth','all-but-last');
INSERT INTO settings VALUES('9b5ecae07ee93424','model.visual_prompts',5);
INSERT INTO settings VALUES('9b5ecae07ee93424','name','fedcopl-copl-digits');
INSERT INTO settings VALUES('9b5ecae07ee93424','privacy.count_clip',50.0);
INSERT INTO settings VALUES('9b5ecae07ee93424','privacy.delta',1.0000000000000000817e-05);
INSERT INTO settings VALUES('9b5ecae07ee93424','privacy.min_sites',2);
INSERT INTO settings VALUES('9b5ecae07ee93424','privacy.noise',0.0);
INSERT INTO settings VALUES('9b5ecae07ee93424','privacy.secure_sums',0);
INSERT INTO settings VALUES('9b5ecae07ee93424','privacy.threshold',0.59999999999999997779);
INSERT INTO settings VALUES('9b5ecae07ee93424','privacy.update_clip',0.10000000000000000555);
INSERT INTO settings VALUES('9b5ecae07ee93424','rounds',2);
INSERT INTO settings VALUES('9b5ecae07ee93424','seed',1);
INSERT INTO settings VALUES('9b5ecae07ee93424','sharing.aggregate','visual');
INSERT INTO settings VALUES('9b5ecae07ee93424','sharing.participation',1.0);
INSERT INTO settings VALUES('9b5ecae07ee93424','train.batch',64);
INSERT INTO settings VALUES('9b5ecae07ee93424','train.clip_norm',0.0);
INSERT INTO settings VALUES('9b5ecae07ee93424','train.epochs',1);
INSERT INTO settings VALUES('9b5ecae07ee93424','train.lr',0.10000000000000000555);
INSERT INTO settings VALUES('9b5ecae07ee93424','train.momentum',0.9000000000000000222);
INSERT INTO settings VALUES('9b5ecae07ee93424','train.schedule','refresh');
INSERT INTO settings VALUES('9b5ecae07ee93424','train.weight_decay',0.050000000000000002775);
CREATE TABLE versions (
    key TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, package TEXT NOT NULL, version TEXT NOT NULL,
    PRIMARY KEY (key, package)
) STRICT, WITHOUT ROWID;
INSERT INTO versions VALUES('9b5ecae07ee93424','fedcopl','0.1.0');
INSERT INTO versions VALUES('9b5ecae07ee93424','numpy','2.4.6');
INSERT INTO versions VALUES('9b5ecae07ee93424','pillow','13.0.0');
INSERT INTO versions VALUES('9b5ecae07ee93424','python','3.11.7');
INSERT INTO versions VALUES('9b5ecae07ee93424','safetensors','0.8.0');
INSERT INTO versions VALUES('9b5ecae07ee93424','tokenizers','0.23.3');
INSERT INTO versions VALUES('9b5ecae07ee93424','torch','2.13.0+cpu');
CREATE TABLE rounds (
    key TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, round INTEGER NOT NULL, metric TEXT NOT NULL, value REAL,
    PRIMARY KEY (key, round, metric)
) STRICT, WITHOUT ROWID;
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'bytes_down',46336.0);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'bytes_up',15616.0);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'drift.visual.cosine',0.86201737884323681448);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'drift.visual.diversity',0.93929572948325723569);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'examples',601.0);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'kept_old_prompt',0.0);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'labelling.chosen',601.0);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'labelling.compared',0.0);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'labelling.images',1198.0);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'labelling.unchanged',0.0);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'loss',0.57127294556149432747);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'macro',0.75551958923987050376);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'participants',2.0);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'pseudo_label_accuracy',0.96006655574043264778);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'refreshed',1.0);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'seconds',5.0664431329996659769);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'seconds_of.estimate',0.69041003799975442234);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'seconds_of.evaluate',0.46841967899990777368);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'seconds_of.select',0.000575853999635000946);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'seconds_of.train',2.5951237640006183937);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'seconds_per_step',0.25951237640006186158);
INSERT INTO rounds VALUES('9b5ecae07ee93424',0,'weighted',0.75459098497495824542);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'bytes_down',30752.0);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'bytes_up',15424.0);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'drift.text.cosine',1.9530936715492701605);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'drift.text.diversity',19.448643235431447351);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'drift.visual.cosine',0.62328274719183252017);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'drift.visual.diversity',0.76694786166693629247);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'examples',601.0);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'kept_old_prompt',0.0);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'loss',0.074191320185455031377);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'macro',0.8186851211072664336);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'participants',2.0);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'refreshed',0.0);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'seconds',5.9994455659998493501);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'seconds_of.evaluate',0.28773247900016940548);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'seconds_of.train',0.62624970500019117025);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'seconds_per_step',0.062624970500019111474);
INSERT INTO rounds VALUES('9b5ecae07ee93424',1,'weighted',0.81803005008347240423);
CREATE TABLE clients (
    key TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, client TEXT NOT NULL, metric TEXT NOT NULL, value REAL,
    PRIMARY KEY (key, client, metric)
) STRICT, WITHOUT ROWID;
INSERT INTO clients VALUES('9b5ecae07ee93424','client-0','final',0.8000000000000000444);
INSERT INTO clients VALUES('9b5ecae07ee93424','client-0','test',310.0);
INSERT INTO clients VALUES('9b5ecae07ee93424','client-0','train',619.0);
INSERT INTO clients VALUES('9b5ecae07ee93424','client-0','zero_shot',0.78064516129032257563);
INSERT INTO clients VALUES('9b5ecae07ee93424','client-1','final',0.83737024221453282279);
INSERT INTO clients VALUES('9b5ecae07ee93424','client-1','test',289.0);
INSERT INTO clients VALUES('9b5ecae07ee93424','client-1','train',579.0);
INSERT INTO clients VALUES('9b5ecae07ee93424','client-1','zero_shot',0.74394463667820065477);
CREATE TABLE classes (
    key TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, class TEXT NOT NULL, metric TEXT NOT NULL, value REAL,
    PRIMARY KEY (key, class, metric)
) STRICT, WITHOUT ROWID;
INSERT INTO classes VALUES('9b5ecae07ee93424','eight','recall',0.6825396825396825573);
INSERT INTO classes VALUES('9b5ecae07ee93424','eight','selected',60.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','eight','train',111.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','five','recall',0.95081967213114748638);
INSERT INTO classes VALUES('9b5ecae07ee93424','five','selected',60.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','five','train',121.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','four','recall',0.89655172413793104979);
INSERT INTO classes VALUES('9b5ecae07ee93424','four','selected',61.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','four','train',123.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','nine','recall',0.71666666666666667406);
INSERT INTO classes VALUES('9b5ecae07ee93424','nine','selected',60.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','nine','train',120.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','one','recall',0.74603174603174604584);
INSERT INTO classes VALUES('9b5ecae07ee93424','one','selected',60.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','one','train',119.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','seven','recall',0.61666666666666669627);
INSERT INTO classes VALUES('9b5ecae07ee93424','seven','selected',60.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','seven','train',119.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','six','recall',0.81481481481481476958);
INSERT INTO classes VALUES('9b5ecae07ee93424','six','selected',60.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','six','train',127.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','three','recall',0.92592592592592593003);
INSERT INTO classes VALUES('9b5ecae07ee93424','three','selected',60.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','three','train',129.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','two','recall',0.90476190476190476719);
INSERT INTO classes VALUES('9b5ecae07ee93424','two','selected',60.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','two','train',114.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','zero','recall',0.93650793650793651146);
INSERT INTO classes VALUES('9b5ecae07ee93424','zero','selected',60.0);
INSERT INTO classes VALUES('9b5ecae07ee93424','zero','train',115.0);
COMMIT;
PRAGMA user_version = 1;
