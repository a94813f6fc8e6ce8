"""example.py OUT_FOLDER: profile two tables, join them by SQL, check the total, compare with pandas if it is there."""

import csv
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import csv_sql
import table_profile

CUSTOMERS = "id;region\n007;North\n008;South\n009;North\n"
ORDERS = "order,customer,amount,day\n1,007,20.5,2025-01-03\n2,008,10,2025-01-04\n3,007,30,2025-01-09\n4,009,,2025-02-01\n"


def main(folder):
    os.makedirs(folder, exist_ok=True)
    paths = []
    for name, text in (("orders.csv", ORDERS), ("customers.csv", CUSTOMERS)):
        paths.append(os.path.join(folder, name))
        with open(paths[-1], "w", encoding="utf-8") as file:
            file.write(text)

    found = table_profile.profile(paths[0])
    facts = {column["column"]: column for column in found["columns"]}
    assert found["rows"] == 4 and facts["amount"]["missing"] == 1 and facts["day"]["type"] == "date", found
    assert facts["customer"]["notes"] == ["leading zeros: read as text"], facts["customer"]

    sql = """select c.region, count(*) as orders, sum(o.amount) as amount
             from orders o join customers c on c.id = o.customer group by c.region order by c.region"""
    names, rows = csv_sql.query(sql, paths)
    assert names == ["region", "orders", "amount"]
    assert rows == [("North", 3, 50.5), ("South", 1, 10.0)], rows
    assert sum(row[2] for row in rows) == 60.5, "the groups must add up to the whole"

    try:
        import pandas
    except ImportError:
        print("pandas is not here (pip install pandas); SQL was enough")
    else:
        orders = pandas.read_csv(paths[0], dtype={"customer": str})
        customers = pandas.read_csv(paths[1], sep=";", dtype=str)
        joined = orders.merge(customers, left_on="customer", right_on="id", validate="many_to_one")
        assert joined.groupby("region")["amount"].sum().to_dict() == {"North": 50.5, "South": 10.0}

    result = os.path.join(folder, "by-region.csv")
    with open(result, "w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([names, *rows])
    print("ok", result)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "analysis-example")
